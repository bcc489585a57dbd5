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
// Upstream: no issue is known. No longer needed when the rows of tests/tcp on forged messages pass
// without it.

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
