package filter

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

const (
	// maxFlows bounds what is remembered, of about 80 bytes each.
	maxFlows   = 1 << 17
	flowShards = 32
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

// firstDialPort begins the ports that dials get (stack's 32768 to 60999, and 61440 and up on the
// host's own address). What is sent from a lower port is taken for an answer.
const firstDialPort = 32768

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

// flowState holds what is known of a flow. Its fields are read and written without a lock.
type flowState struct {
	seen    atomic.Uint32 // when there was a packet last, in seconds since the filter was made
	closing atomic.Bool   // a FIN or RST has passed
}

// flows remembers flows. Any goroutine may use it. Who looks for a flow takes no lock, and writes
// what is known of it once a second.
type flows struct {
	seeds  [4]uint64 // of the hash, so that strangers cannot make long chains
	some   atomic.Bool
	shards [flowShards]flowShard
}

type flowShard struct {
	mu    sync.Mutex                // guards changes
	table atomic.Pointer[flowTable] // nil: nothing was noted yet
	n     int                       // of flows, with mu
	hand  int                       // the chain at which the search for room goes on, with mu
}

// flowTable holds the flows of a shard in chains by their hash, about one each.
type flowTable struct{ chains []atomic.Pointer[flowNode] } // a power of two

// flowNode does not change: a chain is read while it is replaced.
type flowNode struct {
	of    flow
	state *flowState
	next  *flowNode
}

// seedHash prepares empty flows.
func (f *flows) seedHash() {
	for i := range f.seeds {
		f.seeds[i] = rand.Uint64()
	}
}

// hashOf returns the hash of a flow.
func (f *flows) hashOf(k *flow) uint64 {
	rest := uint64(k.localPort)<<48 | uint64(k.remotePort)<<32 | uint64(k.id)
	small := uint64(k.family)<<9 | uint64(k.proto)<<1
	if k.fragments {
		small |= 1
	}
	return foldProduct(foldProduct(k.remote.hi^f.seeds[0], k.remote.lo^f.seeds[1])^k.local.hi^small,
		foldProduct(rest^f.seeds[2], k.local.lo^f.seeds[3])^f.seeds[0])
}

// foldProduct mixes two words.
func foldProduct(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
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

// chainOf returns the chain of a hash.
func (t *flowTable) chainOf(hash uint64) *atomic.Pointer[flowNode] {
	return &t.chains[hash/flowShards&uint64(len(t.chains)-1)]
}

// find returns what is known of a flow; nil: it is not remembered.
func (f *flows) find(k *flow, hash uint64) *flowState {
	t := f.shards[hash%flowShards].table.Load()
	if t == nil {
		return nil
	}
	for n := t.chainOf(hash).Load(); n != nil; n = n.next {
		if n.of == *k {
			return n.state
		}
	}
	return nil
}

// note remembers a flow as of now.
func (f *flows) note(k flow, now uint32, begins bool) {
	hash := f.hashOf(&k)
	known := f.find(&k, hash)
	if known == nil {
		known = f.addFlow(&k, hash, now)
	}
	if known.noteSeen(now); begins && known.closing.Load() {
		known.closing.Store(false)
	}
}

// noteSeen notes a packet of a flow. Most find the second noted already.
func (s *flowState) noteSeen(now uint32) {
	if s.seen.Load() != now {
		s.seen.Store(now)
	}
}

// age returns how long ago a flow was seen: 0, if that was by somebody whose second is a later one.
func (s *flowState) age(now uint32) uint32 { return uint32(max(0, int32(now-s.seen.Load()))) }

// addFlow adds a flow, unless it is there already, and returns what is known of it.
func (f *flows) addFlow(k *flow, hash uint64, now uint32) *flowState {
	const most, least = maxFlows / flowShards, 16
	s := &f.shards[hash%flowShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := f.find(k, hash); known != nil {
		return known
	}
	t := s.table.Load()
	switch {
	case t == nil:
		t = &flowTable{make([]atomic.Pointer[flowNode], least)}
		s.table.Store(t)
		f.some.Store(true)
	case s.n >= most:
		s.makeRoom(t, now)
	case s.n >= len(t.chains):
		t = f.growTable(t)
		s.table.Store(t)
	}
	c := t.chainOf(hash)
	known := &flowState{}
	known.seen.Store(now)
	c.Store(&flowNode{*k, known, c.Load()})
	s.n++
	return known
}

// growTable returns a table of twice the size with the same flows.
func (f *flows) growTable(t *flowTable) *flowTable {
	to := &flowTable{make([]atomic.Pointer[flowNode], 2*len(t.chains))}
	for i := range t.chains {
		for n := t.chains[i].Load(); n != nil; n = n.next {
			c := to.chainOf(f.hashOf(&n.of))
			c.Store(&flowNode{n.of, n.state, c.Load()})
		}
	}
	return to
}

// makeRoom forgets flows that are over, or else the one of some that was seen least lately. mu is
// held.
func (s *flowShard) makeRoom(t *flowTable, now uint32) {
	var oldest flow
	var chain *atomic.Pointer[flowNode]
	left := uint32(0)
	for looked := 0; looked < searched; looked++ {
		s.hand = (s.hand + 1) & (len(t.chains) - 1)
		c := &t.chains[s.hand]
		for n := c.Load(); n != nil; n = n.next {
			age := n.state.age(now)
			if age > n.of.idle(n.state) {
				c.Store(c.Load().withoutFlow(&n.of))
				s.n--
			} else if age >= left {
				oldest, chain, left = n.of, c, age
			}
			looked++
		}
	}
	if s.n >= maxFlows/flowShards && chain != nil {
		chain.Store(chain.Load().withoutFlow(&oldest))
		s.n--
	}
}

// withoutFlow returns a chain without one of its flows.
func (n *flowNode) withoutFlow(k *flow) *flowNode {
	if n.of == *k {
		return n.next
	}
	return &flowNode{n.of, n.state, n.next.withoutFlow(k)}
}

// has reports whether a flow is remembered, and has it stay so. flags are those of a TCP segment.
func (f *flows) has(k *flow, now uint32, flags uint8) bool {
	known := f.find(k, f.hashOf(k))
	if known == nil || known.age(now) > k.idle(known) {
		return false
	}
	known.noteSeen(now)
	if flags&(flagFIN|flagRST) != 0 && !known.closing.Load() {
		known.closing.Store(true)
	}
	return true
}

// hasFlow reports whether a flow is remembered, and has it stay so.
func (f *Filter) hasFlow(k flow, now *moment, flags uint8) bool {
	return f.flows.some.Load() && f.flows.has(&k, now.seconds(f), flags)
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

// remembers reports whether a flow is remembered.
func (f *flows) remembers(k *flow, now uint32) bool {
	known := f.find(k, f.hashOf(k))
	return known != nil && known.age(now) <= k.idle(known)
}

// count returns how many flows are remembered, those that are over included.
func (f *flows) count() (n int) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		n += s.n
		s.mu.Unlock()
	}
	return n
}
