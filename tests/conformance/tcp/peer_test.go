package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

const (
	usualPort = 4000         // of the peer that connects to us
	dialPort  = 8000         // of the peer that we connect to
	ourPort   = 80           // where we listen
	peerISN   = 1<<32 - 5000 // so that sequence numbers wrap
	peerStamp = 1 << 20      // the peer's timestamp at the beginning
)

// peer is the other end: what it has to know of the connections to write segments, and to put what
// comes into relative numbers. It has no state of TCP's.
type peer struct {
	v6    bool
	usual int           // the port of segments that name none
	flows map[int]*flow // by the peer's port
}

// flow is one pair of ports.
type flow struct {
	port, local  int
	theirs, ours uint32 // initial sequence numbers; ours is 0 until it is known
	offered      [2]bool
	first, last  uint32 // timestamps of ours
	stamped      bool   // first and last are valid
}

// negotiated is true when both SYNs had a timestamp.
func (f *flow) negotiated() bool { return f.offered[0] && f.offered[1] }

func newPeer(v6 bool) *peer { return &peer{v6: v6, usual: usualPort, flows: map[int]*flow{}} }

// flow finds or makes the flow of one of the peer's ports.
func (p *peer) flow(port, local int) *flow {
	if port == 0 {
		port = p.usual
	}
	f := p.flows[port]
	if f == nil {
		f = &flow{port: port, local: local, theirs: peerISN}
		p.flows[port] = f
	}
	return f
}

// frame makes a frame with a segment of the peer's, with a timestamp if the connection has them.
func (p *peer) frame(s segment, now time.Duration) []byte {
	f := p.flow(s.port, ourPort)
	f.theirs += s.renumber
	if s.flags&flagSYN != 0 {
		f.offered[0] = s.stamp.there
	} else if f.negotiated() && !s.stamp.never && s.flags&flagRST == 0 {
		s.stamp.there = true
	}
	value, echo := peerStamp+uint32(now.Milliseconds()), f.last
	if s.stamp.exact {
		value, echo = s.stamp.value, f.first+s.stamp.echo
	}
	if s.flags&flagACK == 0 && !s.stamp.exact {
		echo = 0
	}
	options := s.options(value, echo, func(n uint32) uint32 { return f.ours + n })
	b := make([]byte, tcpLen, tcpLen+len(options)+s.size)
	binary.BigEndian.PutUint16(b, uint16(f.port))
	binary.BigEndian.PutUint16(b[2:], uint16(f.local))
	binary.BigEndian.PutUint32(b[4:], f.theirs+s.seq)
	if s.flags&flagACK != 0 {
		binary.BigEndian.PutUint32(b[8:], f.ours+s.ack)
	}
	b[12], b[13] = byte(tcpLen+len(options))<<2, s.flags
	if s.offset != 0 {
		b[12] = byte(s.offset) << 4
	}
	win := s.win
	if win < 0 {
		win = 65535
	}
	binary.BigEndian.PutUint16(b[14:], uint16(win))
	binary.BigEndian.PutUint16(b[18:], uint16(s.urg))
	at := s.seq - 1
	if s.flags&flagSYN != 0 {
		at = s.seq
	}
	b = append(append(b, options...), stream(false, at, s.size)...)
	b = b[:len(b)-s.cut]
	src, dst := address(p.v6, 2), address(p.v6, 1)
	check := ^uint16(transportSum(src, dst, protoTCP, b))
	if s.badSum {
		check ^= 0x0100
	}
	if len(b) >= 18 {
		binary.BigEndian.PutUint16(b[16:], check)
	}
	return ethernet(ipPacket(src, dst, protoTCP, s.ect, b))
}

// read puts a frame of ours into a script's words. ok is false if there is no TCP in it.
func (p *peer) read(f []byte) (s segment, ok bool, err error) {
	packet, ok, err := parsePacket(f)
	if !ok || err != nil || packet.proto != protoTCP {
		return s, ok && packet.proto == protoTCP, err
	}
	h, err := parseTCP(&packet)
	switch {
	case err != nil:
	case packet.v6 != p.v6 || !bytes.Equal(packet.src, address(p.v6, 1)) ||
		!bytes.Equal(packet.dst, address(p.v6, 2)):
		err = fmt.Errorf("from %x to %x", packet.src, packet.dst)
	case packet.ttl != 64 || !packet.dontFragment && h.flags&flagRST == 0:
		err = fmt.Errorf("TTL %d, don't fragment %v", packet.ttl, packet.dontFragment)
	case h.flags&flagACK == 0 && h.ack != 0:
		err = fmt.Errorf("acknowledgement number %d without the flag", h.ack)
	}
	return p.relative(&h), true, err
}

// relative is a segment of ours in relative numbers.
func (p *peer) relative(h *tcpHeader) segment {
	f := p.flow(int(h.to), int(h.from))
	if h.flags&flagSYN != 0 {
		f.local, f.ours, f.offered[1] = int(h.from), h.seq, h.stamped
	}
	if h.stamped {
		if h.flags&flagSYN != 0 && !f.stamped {
			f.first = h.val
		}
		f.last, f.stamped = h.val, true
	}
	s := segment{
		flags: h.flags, seq: h.seq - f.ours, zero: h.seq == 0, size: len(h.payload),
		win: int(h.win), urg: int(h.urg), mss: h.mss, ws: h.ws, sackOK: h.sackOK,
		stamp: stamp{there: h.stamped, exact: h.stamped, value: h.val - f.first, echo: h.echo},
	}
	if h.flags&flagACK != 0 {
		s.ack = h.ack - f.theirs
	}
	for _, b := range h.sack {
		s.sack = append(s.sack, [2]uint32{b[0] - f.theirs, b[1] - f.theirs})
	}
	if f.port != p.usual {
		s.port = f.port
	}
	s.junk = !bytes.Equal(h.payload, stream(true, s.seq-1, len(h.payload)))
	return s
}

// lacksStamp reports a segment of ours without a timestamp, or with one, contrary to what was
// negotiated (RFC 7323 section 3.2).
func (p *peer) lacksStamp(want, got *segment) bool {
	if got.flags&flagRST != 0 || want.stamp.never {
		return false
	}
	if got.flags&flagSYN != 0 {
		return got.stamp.there != want.stamp.there
	}
	return got.stamp.there != p.flow(got.port, ourPort).negotiated()
}

// icmpKinds are the messages that scripts know: type and code for IPv4 and IPv6.
var icmpKinds = map[string][2][2]byte{
	"net": {{3, 0}, {1, 0}}, "host": {{3, 1}, {1, 3}}, "proto": {{3, 2}, {4, 1}},
	"port": {{3, 3}, {1, 4}}, "admin": {{3, 13}, {1, 1}}, "toobig": {{3, 4}, {2, 0}},
	"hops": {{11, 0}, {3, 0}},
}

// icmp makes the frame of a router's message about a segment of ours, as in "toobig 1200 seq 1".
// seq is that of the segment.
func (p *peer) icmp(words []string) ([]byte, error) {
	r := &reader{words: words}
	kind, known := icmpKinds[r.next()]
	mtu, seq, port := uint32(0), uint32(1), 0
	if r.numbers() {
		mtu = r.number()
	}
	for r.more() {
		switch w := r.next(); w {
		case "seq":
			seq = r.number()
		case "port":
			port = int(r.number())
		default:
			r.err = fmt.Errorf("no field %q", w)
		}
	}
	if !known || r.err != nil {
		return nil, fmt.Errorf("ICMP message %v: %v", words, r.err)
	}
	return p.icmpFrame(kind, mtu, seq, p.flow(port, ourPort)), nil
}

func (p *peer) icmpFrame(kind [2][2]byte, mtu, seq uint32, f *flow) []byte {
	quoted := make([]byte, tcpLen)
	binary.BigEndian.PutUint16(quoted, uint16(f.local))
	binary.BigEndian.PutUint16(quoted[2:], uint16(f.port))
	binary.BigEndian.PutUint32(quoted[4:], f.ours+seq)
	quoted[12] = tcpLen << 2
	us, them := address(p.v6, 1), address(p.v6, 2)
	router := address(p.v6, 9)
	family, proto := 0, byte(1)
	if p.v6 {
		family, proto = 1, 58
	}
	b := make([]byte, 8)
	b[0], b[1] = kind[family][0], kind[family][1]
	binary.BigEndian.PutUint32(b[4:], mtu)
	b = append(b, ipPacket(us, them, protoTCP, 0, quoted)...)
	check := ^uint16(sum(0, b))
	if p.v6 {
		check = ^uint16(transportSum(router, us, proto, b))
	}
	binary.BigEndian.PutUint16(b[2:], check)
	return ethernet(ipPacket(router, us, proto, 0, b))
}
