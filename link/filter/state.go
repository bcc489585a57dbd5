package filter

import (
	"encoding/binary"
	"time"
)

// A list says nothing of three kinds of packets that a host cannot do without, so what it would
// drop of them passes:
//
//   - answers to what this host has begun: a TCP connection that it dialled, datagrams from a port
//     that dials use, echo requests. What is sent is noted if the list would drop the answer, for
//     about as long as Linux's conntrack does (net/netfilter/nf_conntrack_proto_*.c);
//   - messages of ICMP about a packet that this host has sent, if the list lets in answers to that;
//   - later fragments of a packet whose first fragment has passed. They have no ports.

// flow holds what two packets of an exchange have in common, seen from here; of a fragment it is
// its datagram, with the identification in place of ports.
type flow struct {
	local, remote         address
	localPort, remotePort uint16
	id                    uint32
	family, proto         uint8
	fragments             bool
}

// receivedFlow returns the flow of a received packet.
func receivedFlow(p *Packet) flow {
	return flow{local: p.dst, remote: p.src, localPort: p.dport, remotePort: p.sport,
		id: uint32(p.ident), family: p.family, proto: p.proto}
}

// fragmentsOf returns the flow of a packet's fragments, in the direction of the packet.
func fragmentsOf(p *Packet) flow {
	return flow{local: p.dst, remote: p.src, id: p.id, family: p.family, proto: p.proto,
		fragments: true}
}

// firstDialPort begins the ports that dials get (stack's 32768 to 60999, and 61440 and up on the
// host's own address). What is sent from a lower port is taken for an answer.
const firstDialPort = 32768

// moment holds the time at which packets of a batch are judged, read from the clock when it is
// asked for first.
type moment struct {
	sinceMade int64 // in nanoseconds
	known     bool
}

// nanoseconds returns the time since f was made.
func (m *moment) nanoseconds(f *Filter) int64 {
	if !m.known {
		m.sinceMade, m.known = int64(f.clock.Since(f.made)), true
	}
	return m.sinceMade
}

// seconds returns the time since f was made.
func (m *moment) seconds(f *Filter) uint32 { return uint32(m.nanoseconds(f) / int64(time.Second)) }

// lets reports whether a received packet passes although the list drops it, by the policy if policy
// is set.
func (b *Batch) lets(p *Packet, ip []byte, policy bool) bool {
	switch {
	case policy && p.isHousekeeping():
		return true
	case p.later:
		return b.f.hasFlow(fragmentsOf(p), &b.time, 0)
	case p.isError():
		return b.letsError(p, ip)
	case p.isAnswer() && b.f.hasFlow(receivedFlow(p), &b.time, p.flags):
		b.f.noteFragments(p, &b.time)
		return true
	}
	return false
}

// hasFlow reports whether a flow is remembered, and has it stay so.
func (f *Filter) hasFlow(k flow, now *moment, flags uint8) bool {
	return f.flows.some.Load() && f.flows.has(&k, now.seconds(f), flags)
}

// letsUsual does what lets does for a packet that Receive has found to be whole.
func (b *Batch) letsUsual(ip []byte, policy bool) bool {
	proto, h := usualTransport(ip)
	flags := uint8(0)
	switch {
	case proto == protoTCP:
		if flags = h[13]; isFirstSYN(flags) {
			return false
		}
	case policy && isHousekeepingPort(binary.BigEndian.Uint16(h[:]),
		binary.BigEndian.Uint16(h[2:])):
		return true
	case binary.BigEndian.Uint16(h[2:]) < firstDialPort:
		return false // noteSent remembers no datagrams from such ports
	}
	return b.f.flows.some.Load() && b.hasUsualFlow(ip, flags)
}

// isFirstSYN reports whether a segment with these flags begins a connection.
func isFirstSYN(flags uint8) bool { return flags&(flagSYN|flagACK) == flagSYN }

// hasUsualFlow reports whether the flow of such a packet is remembered, and has it stay so.
func (b *Batch) hasUsualFlow(ip []byte, flags uint8) bool {
	proto, h := usualTransport(ip)
	k := flow{proto: proto, family: 4, remotePort: binary.BigEndian.Uint16(h[:]),
		localPort: binary.BigEndian.Uint16(h[2:])}
	if ip[0]>>4 == 4 {
		k.remote.hi = uint64(binary.BigEndian.Uint32(ip[12:]))
		k.local.hi = uint64(binary.BigEndian.Uint32(ip[16:]))
	} else {
		k.family = 6
		k.remote = address{bigEndian64(ip[8:]), bigEndian64(ip[16:])}
		k.local = address{bigEndian64(ip[24:]), bigEndian64(ip[32:])}
	}
	return b.f.flows.has(&k, b.time.seconds(b.f), flags)
}

// isAnswer reports what may answer something that this host has begun.
func (p *Packet) isAnswer() bool {
	switch p.proto {
	case protoTCP:
		return p.hasFlags && p.flags&(flagSYN|flagACK) != flagSYN
	case protoUDP:
		return p.ports
	case protoICMP:
		return p.typed && p.kind == echoReply4
	case protoICMPv6:
		return p.typed && p.kind == echoReply6
	}
	return false
}

// letsError decides about a message of ICMP by the packet that it is about.
func (b *Batch) letsError(p *Packet, ip []byte) bool {
	const messageLen = 8
	var about Packet
	at := p.payload + messageLen
	if at > len(ip) || !about.Read(ip[at:]) || about.later || about.family != p.family ||
		about.src != p.dst {
		return false
	}
	answer := about.reversed()
	if v, _ := b.c.received(&answer); v == Accept {
		return true
	}
	return b.f.hasFlow(receivedFlow(&answer), &b.time, 0)
}

// noteFragments lets later fragments pass behind the first of a packet that passes.
func (f *Filter) noteFragments(p *Packet, now *moment) {
	if p.fragment && !p.later {
		f.flows.note(fragmentsOf(p), now.seconds(f), true)
	}
}

// noteSent remembers what a packet that is sent begins, if the list would drop the answer.
func (f *Filter) noteSent(c *compiled, p *Packet, now *moment) {
	begins := false
	switch {
	case p.proto == protoTCP:
		begins = p.hasFlags && p.flags&(flagSYN|flagACK) == flagSYN
	case p.proto == protoUDP:
		begins = p.ports && p.sport >= firstDialPort
	case p.typed:
		begins = p.proto == protoICMP && p.kind == echoRequest4 ||
			p.proto == protoICMPv6 && p.kind == echoRequest6
	}
	if !begins {
		return
	}
	answer := p.reversed()
	if v, _ := c.received(&answer); v == Drop {
		k := receivedFlow(&answer)
		f.flows.note(k, now.seconds(f), true)
		if p.proto == protoTCP && p.sport < firstDialPort {
			f.noteBound(k)
		}
	}
}
