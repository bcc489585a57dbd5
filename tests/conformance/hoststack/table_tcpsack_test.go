//go:build linux

package hoststack

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// sackOnWire compares the SACK blocks by which a host answers data (RFC 2018, RFC 2883).
var sackOnWire = []wireBehaviour{
	{"SACK blocks of what has come twice", func(w *wired) {
		for _, v6 := range []bool{false, true} {
			for _, stamps := range []bool{false, true} {
				w.Text(fmt.Sprintf("IPv6 %v, timestamps %v", v6, stamps),
					w.duplicateSACKs(icmpError{v6: v6}, stamps))
			}
		}
	}},
}

// sackStep describes a segment with data to the host, from the connection's byte at on. The answer
// is awaited whose ACK number is ack; it is noted if it has SACK blocks.
type sackStep struct {
	at, size, ack uint32
	noted         bool
}

// duplicateSACKs lists the blocks of the host's answers.
func (w *wired) duplicateSACKs(e icmpError, stamps bool) string {
	const first = 0xffffff80 // it wraps
	l, err := w.Listen("tcp", netip.AddrPortFrom(e.host(), 0).String())
	w.must(err)
	w.Cleanup(func() { l.Close() })
	from, to := w.wirePort(), l.Addr().(*net.TCPAddr).AddrPort().Port()
	now := uint32(1000)
	deliver := func(seq, ack uint32, flags byte, options, payload []byte) {
		if stamps {
			now++
			options = append(binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, now),
				append(make([]byte, 4), options...)...)
		}
		s := append(segment(from, to, seq, ack, flags), options...)
		s[12] = byte(len(s) / 4 << 4)
		w.deliver(packet(e.peer(), e.host(), 6, append(s, payload...), option{}))
	}
	deliver(first-1, 0, 2, []byte{2, 4, 1280 >> 8, 1280 & 255, 4, 2, 1, 1}, nil)
	answer := w.next("the SYN-ACK", is(6, from))
	_, at := protocolOf(answer)
	own := binary.BigEndian.Uint32(answer[at+4:]) + 1
	deliver(first, own, 0x10, nil, nil)
	c, err := l.Accept()
	w.must(err)
	w.Cleanup(func() { c.Close() })
	var all []string
	for _, s := range []sackStep{
		{0, 100, 100, false},
		{0, 100, 100, true},  // the same again
		{20, 30, 100, true},  // a part of it
		{50, 100, 150, true}, // half of it is new
		{250, 100, 150, true},
		{250, 100, 150, true}, // the same again, behind a gap
		{300, 100, 150, true}, // half of it is new
		{450, 10, 150, true},
		{500, 10, 150, true},
		{0, 50, 150, true},
		{149, 1, 150, true}, // a keep-alive probe with a byte
		{150, 150, 400, true},
		{400, 60, 460, true},
		{460, 60, 520, true},
		{0, 520, 520, true},
	} {
		deliver(first+s.at, own, 0x10, nil, make([]byte, s.size))
		ip := w.next(fmt.Sprintf("the answer to %+v", s), func(ip []byte) bool {
			_, at := protocolOf(ip)
			return is(6, from)(ip) && binary.BigEndian.Uint32(ip[at+8:]) == first+s.ack &&
				(!s.noted || len(sackIn(ip[at:])) > 0)
		})
		_, at := protocolOf(ip)
		var blocks []string
		for b := sackIn(ip[at:]); len(b) >= 8; b = b[8:] {
			blocks = append(blocks, fmt.Sprintf("%d-%d", binary.BigEndian.Uint32(b)-first,
				binary.BigEndian.Uint32(b[4:])-first))
		}
		all = append(all, fmt.Sprintf("%d+%d: %s", s.at, s.size, strings.Join(blocks, " ")))
	}
	return strings.Join(all, "; ")
}

// sackIn returns the SACK blocks of a TCP segment.
func sackIn(tcp []byte) []byte {
	for o := tcp[20 : tcp[12]>>4*4]; len(o) > 1; {
		switch {
		case o[0] == 0:
			return nil
		case o[0] == 1:
			o = o[1:]
		case o[0] == 5:
			return o[2:o[1]]
		default:
			o = o[o[1]:]
		}
	}
	return nil
}
