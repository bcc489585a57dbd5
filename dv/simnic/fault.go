package simnic

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// QueueFaultKind says what goes wrong between a driver's rings and the NIC.
// What goes wrong with the port, the device or a whole completion queue has a
// method of its own: NIC.SetLink, NIC.FailDevice, CQ.Fail.
type QueueFaultKind uint8

// Kinds of QueueFault.
const (
	FaultSendError QueueFaultKind = iota + 1 // a send WQE fails with Syndrome and Vendor
	// a frame consumes a receive WQE with Syndrome and Vendor
	FaultReceiveError
	// a frame finds its receive queue empty, whatever is posted
	FaultStarve
	FaultLoseCompletion // a completion is never written
	// a completion, and those behind it, come Delay later
	FaultLateCompletion
	// a doorbell is not noticed; the next one makes up for it
	FaultLoseDoorbell
	// a completion names another WQE than the one that it is for
	FaultWrongCounter
	// the other end of the wire pauses the port (IEEE 802.3 annex 31B): send queues stand still,
	// for Delay or, if that is 0, until the fault is removed. Reception goes on.
	FaultPause
	// send queues stand still while the link is down, instead of completing into nothing
	FaultHoldWithoutLink
)

// QueueFault is a fault and whom it strikes: of the events of its kind at one
// queue, or all, the first Skip pass, and then Count are struck, or all if
// Count is 0. Rate strikes only that share of them, drawn from Seed; 0 is all.
// A fault that has queues stand still strikes each time one of them looks for
// work; leave Skip, Count and Rate 0.
type QueueFault struct {
	Kind  QueueFaultKind
	Queue uint32 // number of the send, receive or (for completions) completion queue; 0: any

	Skip, Count int
	Rate        float64
	Seed        uint64

	Syndrome, Vendor uint8
	Delay            time.Duration
}

// Injection is a fault in force.
type Injection struct {
	nic   *NIC
	fault QueueFault

	mu   sync.Mutex // covers what follows
	rng  *rand.Rand
	seen int
	hits int
}

// injections is all faults in force.
type injections struct {
	mu   sync.Mutex
	list []*Injection
}

// Inject puts a fault in force until it is removed. Of several faults that could
// strike the same event the one injected first does. Injections use the NIC's
// hooks: SetHooks undoes them.
func (n *NIC) Inject(f QueueFault) *Injection {
	i := &Injection{nic: n, fault: f, rng: rand.New(rand.NewPCG(f.Seed, 0x6661756c74))}
	n.injected.mu.Lock()
	defer n.injected.mu.Unlock()
	n.injected.list = append(n.injected.list, i)
	n.rehook()
	if f.Kind == FaultPause && f.Delay > 0 {
		time.AfterFunc(f.Delay, func() { n.background.run(i.Remove) })
	}
	return i
}

// Remove ends the fault. Completions that it holds back still come late; send queues
// that stood still do what is posted before Remove returns.
func (i *Injection) Remove() {
	i.unhook()
	if i.fault.Kind == FaultPause || i.fault.Kind == FaultHoldWithoutLink {
		i.nic.resumeSends()
	}
}

// unhook takes the fault out of those in force.
func (i *Injection) unhook() {
	in := &i.nic.injected
	in.mu.Lock()
	defer in.mu.Unlock()
	if at := slices.Index(in.list, i); at >= 0 {
		in.list = slices.Delete(slices.Clone(in.list), at, at+1)
		i.nic.rehook()
	}
}

// Hits is how often the fault has struck.
func (i *Injection) Hits() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// strikes decides about one event at the queue with that number.
func (i *Injection) strikes(queue uint32) bool {
	if i.fault.Queue != 0 && i.fault.Queue != queue {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen++
	f := &i.fault
	if i.seen <= f.Skip || f.Count > 0 && i.hits >= f.Count || f.Rate > 0 &&
		i.rng.Float64() >= f.Rate {
		return false
	}
	i.hits++
	return true
}

// strike is the first of the faults of these kinds that strikes, nil if none.
type strike func(queue uint32) *Injection

// of returns the strike function for some kinds, nil when no fault of them is in
// force: engines are faster with no hook than with an idle one.
func (in *injections) of(kinds ...QueueFaultKind) strike {
	var some []*Injection
	for _, i := range in.list {
		if slices.Contains(kinds, i.fault.Kind) {
			some = append(some, i)
		}
	}
	if some == nil {
		return nil
	}
	return func(queue uint32) *Injection {
		for _, i := range some {
			if i.strikes(queue) {
				return i
			}
		}
		return nil
	}
}

// rehook installs what the faults in force need. Called with their lock held.
func (n *NIC) rehook() {
	h := &Hooks{}
	if s := n.injected.of(FaultSendError); s != nil {
		h.SendWQE = func(sq *SQ, _ uint16) (syndrome, vendor uint8) {
			if i := s(sq.number); i != nil {
				return i.fault.Syndrome, i.fault.Vendor
			}
			return 0, 0
		}
	}
	if s := n.injected.of(FaultReceiveError, FaultStarve); s != nil {
		h.Deliver = func(rq *RQ) (starve bool, syndrome, vendor uint8) {
			switch i := s(rq.number); {
			case i == nil:
				return false, 0, 0
			case i.fault.Kind == FaultStarve:
				return true, 0, 0
			default:
				return false, i.fault.Syndrome, i.fault.Vendor
			}
		}
	}
	if s := n.injected.of(FaultLoseCompletion, FaultLateCompletion); s != nil {
		h.Complete = func(cq *CQ) (lose, hold bool) {
			i := s(cq.number)
			if i == nil || i.fault.Kind == FaultLoseCompletion {
				return i != nil, false
			}
			time.AfterFunc(i.fault.Delay, cq.ReleaseHeld)
			return false, true
		}
	}
	if s := n.injected.of(FaultWrongCounter); s != nil {
		h.Counter = func(cq *CQ) (wrong bool) { return s(cq.number) != nil }
	}
	if s := n.injected.of(FaultLoseDoorbell); s != nil {
		h.Doorbell = func(sq *SQ) bool { return s(sq.number) != nil }
	}
	h.Hold = n.hold()
	if len(n.injected.list) == 0 {
		h = nil
	}
	n.SetHooks(h)
}

// hold is the hook of the faults that have send queues stand still, nil without any.
func (n *NIC) hold() func(sq *SQ) bool {
	paused, unlinked := n.injected.of(FaultPause), n.injected.of(FaultHoldWithoutLink)
	if paused == nil && unlinked == nil {
		return nil
	}
	return func(sq *SQ) bool {
		return paused != nil && paused(sq.number) != nil ||
			unlinked != nil && !n.Link() && unlinked(sq.number) != nil
	}
}

// resumeSends has every send queue do what is posted. Those that a fault held back may.
func (n *NIC) resumeSends() {
	for _, sq := range all[*SQ](&n.numbers) {
		sq.mu.Lock()
		if sq.run() {
			sq.delegate()
		}
		sq.mu.Unlock()
	}
}
