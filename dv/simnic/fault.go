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
)

// QueueFault is a fault and whom it strikes: of the events of its kind at one
// queue, or all, the first Skip pass, and then Count are struck, or all if
// Count is 0. Rate strikes only that share of them, drawn from Seed; 0 is all.
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
	return i
}

// Remove ends the fault. Completions that it holds back still come late.
func (i *Injection) Remove() {
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
	if len(n.injected.list) == 0 {
		h = nil
	}
	n.SetHooks(h)
}
