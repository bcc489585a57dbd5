package sim

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// network is the switch that all hosts are plugged into. It learns who is where from source
// addresses. Its methods are the scheduler's, but for change.
type network struct {
	mu   sync.Mutex // held by the scheduler's methods, and while faults change
	plan NetPlan
	// the largest MTU that hosts have at any time
	largest int
	clock   *ticker
	rand    *rand.Rand
	ports   []*port
	where   map[[6]byte]*port
	watch   func(at time.Duration, host int, frame []byte) // nil: nobody
	// hash over frames sent and timers, and when
	trace uint64
	count netCounts
	wrong error         // the first frame that should not have been sent
	moved time.Duration // when a frame was sent last
	lost  time.Duration // when one was lost or damaged last
}

// netCounts are the frames of a switch. Each copy is in one of the counters behind Copies.
type netCounts struct {
	Sent, Copies           uint64
	Delivered, Lost, Cut   uint64 // Cut: the port's link was down
	Flying                 uint64
	Doubled, Late, Corrupt uint64 // of the copies
	Filtered               uint64 // of those sent: to the port they came from
	TooBig                 uint64 // of those sent: for the router, which said so
}

// check says whether every copy of a frame is in one counter.
func (c *netCounts) check() error {
	if ended := c.Delivered + c.Lost + c.Cut + c.Flying; ended != c.Copies {
		return fmt.Errorf("the switch made %d copies of frames and knows of %d: %+v", c.Copies,
			ended, *c)
	}
	return nil
}

func newNetwork(p NetPlan, c *ticker, seed uint64) *network {
	return &network{plan: p, clock: c, rand: rand.New(rand.NewPCG(seed, 0x6e6574)),
		where: map[[6]byte]*port{}, trace: 14695981039346656037}
}

// note adds a number to the trace: FNV-1a by words.
func (n *network) note(v uint64) { n.trace = (n.trace ^ v) * 1099511628211 }

// change changes the faults of the network and its ports. Any goroutine may call it.
func (n *network) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// losses counts frames that were lost, late or damaged. Any goroutine may call it.
func (n *network) losses() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count.Lost + n.count.Cut + n.count.Late + n.count.Corrupt
}

// move takes the frames that hosts have sent, and reports whether there were any.
func (n *network) move() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	any := false
	for _, p := range n.ports {
		for _, f := range p.take() {
			any = true
			n.carry(p, f)
		}
	}
	return any
}

// carry takes a frame that a host has sent.
func (n *network) carry(from *port, f []byte) {
	n.count.Sent++
	n.moved = n.clock.now()
	if n.watch != nil {
		n.watch(n.moved, from.index, f)
	}
	if err := from.inspect.frame(f); err != nil && n.wrong == nil {
		n.wrong = fmt.Errorf("host %d: %w", from.index, err)
	}
	n.note(uint64(n.moved))
	n.note(uint64(from.index)<<32 | uint64(crc32.ChecksumIEEE(f)))
	dst, src := [6]byte(f), [6]byte(f[6:])
	if src[0]&1 == 0 {
		n.where[src] = from
	}
	if n.plan.PathMTU == 0 {
		n.forward(from, n.where[dst], f)
		return
	}
	on, back := route(f, n.plan.PathMTU)
	for _, f := range on {
		n.forward(from, n.where[dst], f)
	}
	if back != nil {
		n.count.TooBig++
		n.send(from, from, back)
	}
}

// forward sends a frame to the port of its destination, nil: to all but the one it came from.
func (n *network) forward(from, to *port, f []byte) {
	switch {
	case to == from:
		n.count.Filtered++
	case to != nil && f[0]&1 == 0:
		n.send(from, to, f)
	default:
		for _, p := range n.ports {
			if p != from {
				n.send(from, p, slices.Clone(f))
			}
		}
	}
}

// send draws what happens to a copy of a frame. It draws the same numbers whatever happens, so that
// a fault that is left out does not change the others.
func (n *network) send(from, to *port, f []byte) {
	lose, double, late, spoil := n.rand.Float64(), n.rand.Float64(), n.rand.Float64(),
		n.rand.Float64()
	jitter, bit := n.rand.Float64(), n.rand.Uint32()
	h := from.harm.add(to.harm).add(n.plan.Harm)
	n.count.Copies++
	switch {
	case from.cut || to.cut:
		n.count.Cut++
		n.lost = n.clock.now()
		return
	case lose < h.Lose:
		n.count.Lost++
		n.lost = n.clock.now()
		return
	}
	if spoil < h.Corrupt && noticed(f) {
		n.count.Corrupt++
		n.lost = n.clock.now()
		f[int(bit>>3)%len(f)] ^= 1 << (bit & 7)
	}
	delay := n.plan.Delay + time.Duration(jitter*float64(n.plan.Jitter))
	due := max(n.clock.now()+delay, to.last)
	if late < h.Reorder {
		n.count.Late++
		due += time.Duration(float64(h.lateBy()) * jitter)
	} else {
		to.last = due
	}
	n.arrive(to, f, due)
	if double < h.Double {
		n.count.Doubled++
		n.count.Copies++
		n.arrive(to, slices.Clone(f), due)
	}
}

// arrive delivers a frame at the first multiple of the plan's quantum from due on, with all others
// of the same time: that is how a NIC gets batches.
func (n *network) arrive(to *port, f []byte, due time.Duration) {
	n.count.Flying++
	if q := n.plan.Quantum; q > 0 {
		due = (due/q + 1) * q
	}
	if batch := to.due[due]; batch != nil {
		*batch = append(*batch, f)
		return
	}
	batch := &[][]byte{f}
	to.due[due] = batch
	n.clock.AfterFunc(due-n.clock.now(), func() { to.arrivals <- arrival{due, batch} })
}

// land hands over the frames that have arrived, and reports whether there were any.
func (n *network) land() bool {
	any := false
	for _, p := range n.ports {
		for more := true; more; {
			select {
			case a := <-p.arrivals:
				any = true
				delete(p.due, a.at)
				n.count.Flying -= uint64(len(*a.frames))
				n.count.Delivered += uint64(len(*a.frames))
				p.deliver(*a.frames)
			default:
				more = false
			}
		}
	}
	return any
}

// noticed reports whether a checksum tells that a bit of a frame has changed. ARP has none. One
// bit in each of two fragments of a datagram may cancel out, so only the first fragment is damaged.
func noticed(f []byte) bool {
	ip := f[header.EthernetMinimumSize:]
	switch header.Ethernet(f).Type() {
	case header.IPv4ProtocolNumber:
		return header.IPv4(ip).FragmentOffset() == 0
	case header.IPv6ProtocolNumber:
		const offset = 0xfff8 // of the fragment header's second word (RFC 8200 section 4.5)
		return header.IPv6(ip).NextHeader() != uint8(header.IPv6FragmentExtHdrIdentifier) ||
			binary.BigEndian.Uint16(ip[header.IPv6MinimumSize+2:])&offset == 0
	}
	return false
}
