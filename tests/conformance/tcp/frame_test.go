package tcp

import (
	"encoding/binary"
	"fmt"
)

// What is in a frame is written and read here by hand, with nothing of the packages under test, nor
// of gVisor.

const (
	ethLen   = 14
	tcpLen   = 20
	protoTCP = 6
)

var (
	ourMAC  = [6]byte{2, 0, 0, 0, 0, 1}
	peerMAC = [6]byte{2, 0, 0, 0, 0, 2}
)

// address is 10.0.0.n or fd00::n.
func address(v6 bool, n byte) []byte {
	if v6 {
		return []byte{0: 0xfd, 15: n}
	}
	return []byte{10, 0, 0, n}
}

// sum adds up 16-bit words, RFC 1071.
func sum(start uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		start += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) > 0 {
		start += uint32(b[0]) << 8
	}
	for start > 0xffff {
		start = start&0xffff + start>>16
	}
	return start
}

// transportSum is the sum of a transport packet and its pseudo header.
func transportSum(src, dst []byte, proto byte, b []byte) uint32 {
	return sum(sum(sum(uint32(proto)+uint32(len(b)), src), dst), b)
}

// ipPacket puts an IP header in front of a transport packet.
func ipPacket(src, dst []byte, proto, tos byte, b []byte) []byte {
	if len(src) == 16 {
		h := make([]byte, 40, 40+len(b))
		h[0], h[1], h[6], h[7] = 0x60|tos>>4, tos<<4, proto, 64
		binary.BigEndian.PutUint16(h[4:], uint16(len(b)))
		copy(h[8:], src)
		copy(h[24:], dst)
		return append(h, b...)
	}
	h := make([]byte, 20, 20+len(b))
	h[0], h[1], h[6], h[8], h[9] = 0x45, tos, 0x40, 64, proto
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(b)))
	copy(h[12:], src)
	copy(h[16:], dst)
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum(0, h)))
	return append(h, b...)
}

// ethernet puts an Ethernet header in front of a packet to us.
func ethernet(packet []byte) []byte {
	f := append(append(make([]byte, 0, ethLen+len(packet)), ourMAC[:]...), peerMAC[:]...)
	if packet[0]>>4 == 6 {
		f = append(f, 0x86, 0xdd)
	} else {
		f = append(f, 0x08, 0x00)
	}
	return append(f, packet...)
}

// options are a segment's, padded.
func (s *segment) options(value, echo uint32, relative func(uint32) uint32) (b []byte) {
	if s.mss >= 0 {
		b = append(b, 2, 4, byte(s.mss>>8), byte(s.mss))
	}
	if s.sackOK {
		b = append(b, 1, 1, 4, 2)
	}
	if s.stamp.there {
		b = append(b, 1, 1, 8, 10)
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
	}
	if s.ws >= 0 {
		b = append(b, 1, 3, 3, byte(s.ws))
	}
	if len(s.sack) > 0 {
		b = append(b, 1, 1, 5, byte(2+8*len(s.sack)))
		for _, block := range s.sack {
			b = binary.BigEndian.AppendUint32(b, relative(block[0]))
			b = binary.BigEndian.AppendUint32(b, relative(block[1]))
		}
	}
	return b
}

// stream is n bytes of one direction's stream from an offset on.
func stream(ours bool, offset uint32, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		at := offset + uint32(i)
		b[i] = byte(at*31 + at>>8)
		if ours {
			b[i] ^= 0x5a
		}
	}
	return b
}

// packet is what one frame has in it, as it is on the wire.
type packet struct {
	v6           bool
	proto        byte
	src, dst     []byte
	ttl, tos     byte
	dontFragment bool
	body         []byte // of the transport protocol
	ip           []byte // the IP packet
}

// parsePacket reads an Ethernet frame of ours with IP in it. ok is false for other frames.
func parsePacket(f []byte) (p packet, ok bool, err error) {
	if len(f) < ethLen+20 {
		return p, false, nil
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		p, err = parseIPv4(f[ethLen:])
	case 0x86dd:
		p, err = parseIPv6(f[ethLen:])
	default:
		return p, false, nil
	}
	if f[0]&1 != 0 { // a group's
		return p, false, err
	}
	if [6]byte(f[:6]) != peerMAC || [6]byte(f[6:12]) != ourMAC {
		err = fmt.Errorf("to %x from %x", f[:6], f[6:12])
	}
	return p, true, err
}

func parseIPv4(b []byte) (p packet, err error) {
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if b[0]>>4 != 4 || header < 20 || total < header || total > len(b) {
		return p, fmt.Errorf("IPv4 header %x", b[:20])
	}
	if sum(0, b[:header]) != 0xffff {
		err = fmt.Errorf("wrong IPv4 checksum")
	}
	return packet{proto: b[9], src: b[12:16], dst: b[16:20], ttl: b[8], tos: b[1],
		dontFragment: b[6]&0x40 != 0, body: b[header:total], ip: b[:total]}, err
}

func parseIPv6(b []byte) (p packet, err error) {
	if len(b) < 40 || b[0]>>4 != 6 {
		return p, fmt.Errorf("IPv6 header %x", b)
	}
	total := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if total > len(b) {
		return p, fmt.Errorf("IPv6 length %d of %d", total, len(b))
	}
	return packet{v6: true, proto: b[6], src: b[8:24], dst: b[24:40], ttl: b[7],
		tos: b[0]<<4 | b[1]>>4, dontFragment: true, body: b[40:total], ip: b[:total]}, nil
}

// tcpHeader is a TCP header as it is on the wire.
type tcpHeader struct {
	from, to  uint16
	seq, ack  uint32
	flags     byte
	win, urg  uint16
	options   []byte
	payload   []byte
	mss, ws   int
	sackOK    bool
	stamped   bool
	val, echo uint32
	sack      [][2]uint32
}

// parseTCP reads and verifies a TCP segment.
func parseTCP(p *packet) (h tcpHeader, err error) {
	b := p.body
	if len(b) < tcpLen || int(b[12]>>4)*4 < tcpLen || int(b[12]>>4)*4 > len(b) {
		return h, fmt.Errorf("TCP header %x", b)
	}
	if transportSum(p.src, p.dst, protoTCP, b) != 0xffff {
		err = fmt.Errorf("wrong TCP checksum")
	}
	header := int(b[12]>>4) * 4
	h = tcpHeader{
		from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]),
		seq: binary.BigEndian.Uint32(b[4:]), ack: binary.BigEndian.Uint32(b[8:]), flags: b[13],
		win: binary.BigEndian.Uint16(b[14:]), urg: binary.BigEndian.Uint16(b[18:]),
		options: b[tcpLen:header], payload: b[header:], mss: -1, ws: -1,
	}
	if b[12]&15 != 0 {
		err = fmt.Errorf("reserved bits %x", b[12]&15)
	}
	for o := h.options; len(o) > 0 && err == nil; {
		o, err = h.option(o)
	}
	return h, err
}

// option reads the first of some options and returns the others.
func (h *tcpHeader) option(o []byte) ([]byte, error) {
	switch {
	case o[0] == 0:
		return nil, nil
	case o[0] == 1:
		return o[1:], nil
	case len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
		return nil, fmt.Errorf("malformed options %x", h.options)
	}
	v := o[2:o[1]]
	switch {
	case o[0] == 2 && len(v) == 2:
		h.mss = int(binary.BigEndian.Uint16(v))
	case o[0] == 3 && len(v) == 1:
		h.ws = int(v[0])
	case o[0] == 4 && len(v) == 0:
		h.sackOK = true
	case o[0] == 8 && len(v) == 8:
		h.stamped = true
		h.val, h.echo = binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
	case o[0] == 5 && len(v) > 0 && len(v)%8 == 0:
		for ; len(v) > 0; v = v[8:] {
			h.sack = append(h.sack, [2]uint32{binary.BigEndian.Uint32(v),
				binary.BigEndian.Uint32(v[4:])})
		}
	default:
		return nil, fmt.Errorf("unknown option %x", o[:o[1]])
	}
	return o[o[1]:], nil
}
