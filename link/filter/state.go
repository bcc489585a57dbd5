package filter

import (
	"sync"
	"sync/atomic"
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

const (
	// maxFlows bounds what is remembered, of about 100 bytes each.
	maxFlows   = 1 << 17
	flowShards = 32
	// firstDialPort begins the ports that dials get (stack's 32768 to 60999, and 61440 and
	// up on the host's own address). What is sent from a lower port is taken for an answer.
	firstDialPort = 32768
	// searched says how many flows are looked at for one that may be forgotten.
	searched = 32
)

// Times for which a flow is remembered after its last packet, in seconds.
const (
	idleTCP       = 5 * 86400
	idleClosing   = 120
	idleDatagrams = 180
	idleEcho      = 30
	idleFragments = 30
)

// flowState holds what is known of a flow. Its fields are read and written without a lock.
type flowState struct {
	seen    atomic.Uint32 // when there was a packet last, in seconds since the filter was made
	closing atomic.Bool   // a FIN or RST has passed
}

// flows remembers flows. Any goroutine may use it.
type flows struct {
	shards [flowShards]struct {
		mu  sync.RWMutex
		all map[flow]*flowState
	}
}

// shardOf spreads flows by what strangers choose least: our port and the words of the addresses.
func shardOf(k *flow) uint64 {
	h := k.remote.hi ^ k.remote.lo ^ k.local.lo ^ uint64(k.localPort)<<16 ^ uint64(k.id)
	return h * 0x9e3779b97f4a7c15 >> 59 % flowShards
}

// idle returns for how long a flow is remembered.
func (k *flow) idle(s *flowState) uint32 {
	switch {
	case k.fragments:
		return idleFragments
	case k.proto == protoTCP && s.closing.Load():
		return idleClosing
	case k.proto == protoTCP:
		return idleTCP
	case k.proto == protoUDP:
		return idleDatagrams
	}
	return idleEcho
}

// note remembers a flow as of now.
func (f *flows) note(k flow, now uint32, begins bool) {
	s := &f.shards[shardOf(&k)]
	s.mu.RLock()
	known := s.all[k]
	s.mu.RUnlock()
	if known == nil {
		s.mu.Lock()
		if known = s.all[k]; known == nil {
			if s.all == nil {
				s.all = map[flow]*flowState{}
			}
			if len(s.all) >= maxFlows/flowShards {
				makeRoom(s.all, now)
			}
			known = &flowState{}
			s.all[k] = known
		}
		s.mu.Unlock()
	}
	if known.seen.Store(now); begins {
		known.closing.Store(false)
	}
}

// makeRoom forgets flows that are over, or else the one of some that was seen least lately.
func makeRoom(all map[flow]*flowState, now uint32) {
	var oldest *flow
	left, looked := uint32(0), 0
	for k, s := range all {
		age := now - s.seen.Load()
		if age > k.idle(s) {
			delete(all, k)
		} else if age >= left {
			oldest, left = &k, age
		}
		if looked++; looked == searched {
			break
		}
	}
	if len(all) >= maxFlows/flowShards && oldest != nil {
		delete(all, *oldest)
	}
}

// has reports whether a flow is remembered, and has it stay so. flags are those of a TCP segment.
func (f *flows) has(k flow, now uint32, flags uint8) bool {
	s := &f.shards[shardOf(&k)]
	s.mu.RLock()
	known := s.all[k]
	s.mu.RUnlock()
	if known == nil || now-known.seen.Load() > k.idle(known) {
		return false
	}
	known.seen.Store(now)
	if flags&(flagFIN|flagRST) != 0 {
		known.closing.Store(true)
	}
	return true
}

// remembers reports whether a flow is remembered.
func (f *flows) remembers(k flow, now uint32) bool {
	s := &f.shards[shardOf(&k)]
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := s.all[k]
	return known != nil && now-known.seen.Load() <= k.idle(known)
}

// count returns how many flows are remembered, those that are over included.
func (f *flows) count() (n int) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.RLock()
		n += len(s.all)
		s.mu.RUnlock()
	}
	return n
}

// lets reports whether a received packet passes although the list drops it, by the policy if policy
// is set.
func (f *Filter) lets(c *compiled, p *Packet, ip []byte, policy bool) bool {
	switch {
	case policy && p.isHousekeeping():
		return true
	case p.later:
		return f.flows.has(fragmentsOf(p), f.now(), 0)
	case p.isError():
		return f.letsError(c, p, ip)
	case p.isAnswer() && f.flows.has(receivedFlow(p), f.now(), p.flags):
		f.noteFragments(p)
		return true
	}
	return false
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
func (f *Filter) letsError(c *compiled, p *Packet, ip []byte) bool {
	const messageLen = 8
	var about Packet
	at := p.payload + messageLen
	if at > len(ip) || !about.Read(ip[at:]) || about.later || about.family != p.family ||
		about.src != p.dst {
		return false
	}
	answer := about.reversed()
	if v, _ := c.received(&answer); v == Accept {
		return true
	}
	return f.flows.has(receivedFlow(&answer), f.now(), 0)
}

// noteFragments lets later fragments pass behind the first of a packet that passes.
func (f *Filter) noteFragments(p *Packet) {
	if p.fragment && !p.later {
		f.flows.note(fragmentsOf(p), f.now(), true)
	}
}

// noteSent remembers what a packet that is sent begins, if the list would drop the answer.
func (f *Filter) noteSent(c *compiled, p *Packet) {
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
		f.flows.note(k, f.now(), true)
		if p.proto == protoTCP && p.sport < firstDialPort {
			f.noteBound(k)
		}
	}
}
