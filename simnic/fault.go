package simnic

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// QueueFaultKind says what goes wrong between a driver's rings and the NIC. Faults of the port, the
// device or a whole completion queue have their own methods: NIC.SetLink, NIC.FailDevice, CQ.Fail.
type QueueFaultKind uint8

// Kinds of QueueFault.
const (
	FaultSendError QueueFaultKind = iota + 1 // a send WQE fails with Syndrome and Vendor
	// a frame consumes a receive WQE with Syndrome and Vendor
	FaultReceiveError
	// a frame finds its receive queue empty, although WQEs are posted
	FaultStarve
	FaultLoseCompletion // a completion is never written
	// a completion, and those after it, are written Delay later, or before a queue that completes
	// there is reset
	FaultLateCompletion
	// a doorbell is lost; the next one announces its WQEs too
	FaultLoseDoorbell
	// a completion has the wqe_counter of another WQE
	FaultWrongCounter
	// the other end of the wire pauses the port (IEEE 802.3 annex 31B): send queues stop executing,
	// for Delay or, if that is 0, until the fault is removed. Reception goes on.
	FaultPause
	// send queues stop executing while the link is down, instead of completing WQEs without sending
	FaultHoldWithoutLink
)

// QueueFault describes a fault and the events it applies to: of the events of its kind at one
// queue, or all queues, it skips the first Skip, and then applies to Count, or to all if Count is
// 0. With Rate it applies only to that fraction of them, drawn from Seed; 0 is all. A fault that
// stops queues applies each time one of them looks for WQEs; leave Skip, Count and Rate 0.
type QueueFault struct {
	Kind  QueueFaultKind
	Queue uint32 // number of the send, receive or (for completions) completion queue; 0: any

	Skip, Count int
	Rate        float64
	Seed        uint64

	Syndrome, Vendor uint8
	Delay            time.Duration
}

// Injection describes a fault in force.
type Injection struct {
	nic   *NIC
	fault QueueFault

	mu   sync.Mutex // covers what follows
	rng  *rand.Rand
	seen int
	hits int
}

// injections holds all faults in force.
type injections struct {
	mu   sync.Mutex
	list []*Injection
}

// Inject puts a fault in force until it is removed. Of several faults that match the same event,
// the one injected first applies. Injections use the NIC's hooks: SetHooks removes them.
func (n *NIC) Inject(f QueueFault) *Injection {
	i := &Injection{nic: n, fault: f, rng: rand.New(rand.NewPCG(f.Seed, 0x6661756c74))}
	n.injected.mu.Lock()
	defer n.injected.mu.Unlock()
	n.injected.list = append(n.injected.list, i)
	n.installHooks()
	if f.Kind == FaultPause && f.Delay > 0 {
		n.clock.AfterFunc(f.Delay, func() { n.background.runBeside(i.Remove) })
	}
	return i
}

// Remove ends the fault. Completions that it holds back are still written late; send queues that it
// stopped execute the posted WQEs before Remove returns.
func (i *Injection) Remove() {
	i.removeFault()
	if i.fault.Kind == FaultPause || i.fault.Kind == FaultHoldWithoutLink {
		i.nic.resumeSends()
	}
}

// removeFault removes the fault from those in force.
func (i *Injection) removeFault() {
	in := &i.nic.injected
	in.mu.Lock()
	defer in.mu.Unlock()
	if at := slices.Index(in.list, i); at >= 0 {
		in.list = slices.Delete(slices.Clone(in.list), at, at+1)
		i.nic.installHooks()
	}
}

// Hits returns the number of events the fault was applied to.
func (i *Injection) Hits() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// appliesTo reports whether the fault applies to one event at the queue with that number.
func (i *Injection) appliesTo(queue uint32) bool {
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

// strike returns the first of the faults of these kinds that applies, nil if none.
type strike func(queue uint32) *Injection

// strikeFor returns the strike function for some kinds, nil when no fault of them is in
// force: engines are faster with no hook than with an idle one.
func (in *injections) strikeFor(kinds ...QueueFaultKind) strike {
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
			if i.appliesTo(queue) {
				return i
			}
		}
		return nil
	}
}

// installHooks installs the hooks that the faults in force need. Called with their lock held.
func (n *NIC) installHooks() {
	h := &Hooks{}
	if s := n.injected.strikeFor(FaultSendError); s != nil {
		h.SendWQE = func(sq *SQ, _ uint16) (syndrome, vendor uint8) {
			if i := s(sq.number); i != nil {
				return i.fault.Syndrome, i.fault.Vendor
			}
			return 0, 0
		}
	}
	if s := n.injected.strikeFor(FaultReceiveError, FaultStarve); s != nil {
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
	if s := n.injected.strikeFor(FaultLoseCompletion, FaultLateCompletion); s != nil {
		h.Complete = func(cq *CQ) (lose, hold bool) {
			i := s(cq.number)
			if i == nil || i.fault.Kind == FaultLoseCompletion {
				return i != nil, false
			}
			n.clock.AfterFunc(i.fault.Delay, cq.ReleaseHeld)
			return false, true
		}
	}
	if s := n.injected.strikeFor(FaultWrongCounter); s != nil {
		h.Counter = func(cq *CQ) (wrong bool) { return s(cq.number) != nil }
	}
	if s := n.injected.strikeFor(FaultLoseDoorbell); s != nil {
		h.Doorbell = func(sq *SQ) bool { return s(sq.number) != nil }
	}
	h.Hold = n.holdHook()
	if len(n.injected.list) == 0 {
		h = nil
	}
	n.SetHooks(h)
}

// holdHook returns the hook of the faults that stop send queues, nil without any.
func (n *NIC) holdHook() func(sq *SQ) bool {
	paused, unlinked := n.injected.strikeFor(FaultPause), n.injected.strikeFor(FaultHoldWithoutLink)
	if paused == nil && unlinked == nil {
		return nil
	}
	return func(sq *SQ) bool {
		return paused != nil && paused(sq.number) != nil ||
			unlinked != nil && !n.Link() && unlinked(sq.number) != nil
	}
}

// resumeSends makes every send queue execute its posted WQEs, unless another fault stops it.
func (n *NIC) resumeSends() {
	for _, sq := range allOfType[*SQ](&n.numbers) {
		sq.mu.Lock()
		if sq.runPosted() {
			sq.startSender()
		}
		sq.mu.Unlock()
	}
}
