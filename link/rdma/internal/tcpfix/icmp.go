package tcpfix

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// A message of ICMP about a TCP segment ends a dial, or makes segments smaller.
//
// Behaviour: netstack looks for the connection by the addresses and ports that the message quotes,
// and not at the sequence number. Who guesses the ports, or knows them, can refuse connections and
// slow them down without seeing a packet of them (RFC 5927 sections 4.1 and 7).
//
// Fix: a message is dropped if the segment that it quotes was not sent, as far as that is known: it
// must lie within maxQuoted before the end of what was sent, or be the SYN or what follows it at
// once. Linux has the same check (net/ipv4/tcp_ipv4.c tcp_v4_err). Nothing is known of a flow that
// shares its place in a table with a later one, and of a handshake that we have not begun.
//
// Upstream: docs/upstream/15-message-sequence.md. No longer needed when the rows of
// tests/conformance/tcp on forged messages pass without it.

// maxQuoted is more than any send buffer, in bytes.
const maxQuoted = 1 << 26

// forged reports whether a received packet is a message about a TCP segment that was never sent.
func (f *Flows) forged(frame []byte, p *hdr.Packet) bool {
	s, ok := hdr.Quoted(frame, p, f.key)
	if !ok {
		return false
	}
	seq := binary.BigEndian.Uint32(s.TCP()[4:])
	_, hash := s.Flow()
	if end, known := f.resend.end(hash); known {
		return end-seq > maxQuoted
	}
	return f.synBurst.excludes(&s, seq)
}

// pathMTU keeps forged messages from making segments tiny.
//
// Behaviour: netstack takes any next-hop MTU from a message of a router that a packet was too big,
// and one below the least that IP allows for 0: the connection then sends segments of one byte,
// for good. Who sends such a message has to know addresses and ports, no sequence number (RFC 5927
// section 7). RFC 8201 section 4 has an MTU below 1280 discarded, and Linux heeds none below 552
// (net.ipv4.route.min_pmtu).
//
// Fix: a smaller MTU becomes the least.
//
// Upstream: docs/upstream/14-path-mtu-floor.md. No longer needed when TestPathMTUFloor fails.
const (
	// leastMTU4 and leastMTU6 are in bytes of IP packets.
	leastMTU4 = 552
	leastMTU6 = 1280
)

// raisePathMTU changes a message that a packet was too big, its checksum too (RFC 1624), and
// reports whether it did. A wrong checksum stays wrong.
func raisePathMTU(frame []byte, p *hdr.Packet) bool {
	const headerLen = 8
	if p.L4 == 0 || p.End-p.L4 < headerLen || quotesDatagram(frame[p.L4+headerLen:p.End], p) {
		return false
	}
	h := frame[p.L4 : p.L4+headerLen]
	mtu, least, tooBig := toldMTU(h, p)
	if !tooBig || mtu >= least {
		return false
	}
	if p.Proto == hdr.ProtoICMP {
		least |= uint32(binary.BigEndian.Uint16(h[4:])) << 16
	}
	return setPathMTU(h, least)
}

// toldMTU returns the path's MTU by a message, p, that a packet was too big, and the least that
// counts, in bytes of IP packets. h begins with its ICMP header. False: p is another message.
func toldMTU(h []byte, p *hdr.Packet) (mtu, least uint32, tooBig bool) {
	switch {
	case p.Proto == hdr.ProtoICMP && h[0] == 3 && h[1] == 4: // fragmentation needed
		return uint32(binary.BigEndian.Uint16(h[6:])), leastMTU4, true
	case p.Proto == hdr.ProtoICMPv6 && h[0] == 2:
		return binary.BigEndian.Uint32(h[4:]), leastMTU6, true
	}
	return 0, 0, false
}

// quotesDatagram reports whether a message that quotes b is about a datagram. UDP sockets heed such
// MTUs by Linux's rules (stack/path_mtu.go).
func quotesDatagram(b []byte, p *hdr.Packet) bool {
	const protocol4, protocol6, fragment6 = 9, 6, 44
	if len(b) < hdr.IPv4Len {
		return false
	}
	if p.Proto == hdr.ProtoICMP {
		return b[protocol4] == hdr.ProtoUDP
	}
	return b[protocol6] == hdr.ProtoUDP || b[protocol6] == fragment6
}

// setPathMTU writes bytes 4 to 7 of an ICMP header.
func setPathMTU(h []byte, to uint32) bool {
	sum := uint32(^binary.BigEndian.Uint16(h[2:]))
	for at := 4; at < 8; at += 2 {
		word := uint16(to >> (8 * (6 - at)))
		sum += uint32(^binary.BigEndian.Uint16(h[at:])) + uint32(word)
		binary.BigEndian.PutUint16(h[at:], word)
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(h[2:], ^uint16(sum))
	return true
}
