// Package sim runs hosts, a switch and what goes wrong between them on virtual time, all of it from
// one number, the seed. A run repeats exactly.
package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Result is what came of a run.
type Result struct {
	Seed    uint64
	Err     error  // nil: every invariant held
	Trace   uint64 // hash over all frames sent, and when, and over the times of all timers
	Virtual time.Duration
	Frames  uint64
	Steps   uint64 // timers that fired
	InPlace uint64 // packets that hosts of ours sent without copying
	Merged  uint64 // frames that went into a packet with others, in links of hosts that are up
	TooBig  uint64 // frames that the router has refused
	Log     []string
	Stacks  string // of all goroutines, if Err is not nil
}

// world is one run.
type world struct {
	plan   Plan
	clock  *ticker
	net    *network
	hosts  []host
	settle settler
	calls  busy
	table  []byte // of patterns
	steps  uint64
	began  time.Duration // when the work began
	calm   time.Duration // when the last fault ends

	jobs []*job

	mu       sync.Mutex // covers what follows
	tasks    []*task
	sleeping int                // tasks that wait on purpose
	awake    time.Duration      // when the last of them went on
	cut      time.Duration      // handshakes that began before may be lost
	broken   map[[2]uint16]bool // connections one of whose ends was killed, see connectionOf
	failed   []error            // invariants that tasks found violated
	log      []string           // what happened besides frames
}

// Limits of a run, in virtual time unless said otherwise.
const (
	upLimit   = time.Minute
	workLimit = 120 * time.Second // after the last fault
	goneLimit = 130 * time.Second // two maximum segment lifetimes, and what a FIN takes
	downLimit = 30 * time.Second
	// drainPause is longer than events of received frames are held back (EventMicroseconds).
	drainPause = 10 * time.Millisecond
	// sweepPause lasts longer than a port without connections stays the stack's.
	sweepPause = 3 * time.Second
	maxSteps   = 3_000_000 // timers
)

// Run runs a plan. GOMAXPROCS must be 1, and the garbage collector off, for runs to repeat. No two
// runs may take place in a process at once.
func Run(p Plan) Result {
	if err := stack.ZeroCopySend(); err != nil { // as HostPlan.InPlace says
		return Result{Seed: p.Seed, Err: err}
	}
	seedRuntime(p.Seed)
	before := runtime.NumGoroutine()
	w := newWorld(p)
	err := w.run()
	if err == nil {
		err = w.leftovers(before)
	}
	r := Result{Seed: p.Seed, InPlace: w.inPlace(), Merged: w.merged(),
		TooBig: w.net.count.TooBig, Trace: w.net.trace, Virtual: w.clock.now(),
		Frames: w.net.count.Sent, Steps: w.steps, Log: w.log}
	tidy()
	if err != nil {
		r.Err, r.Stacks = fmt.Errorf("after %v: %w", w.clock.now(), err), goroutines()
	}
	return r
}

func newWorld(p Plan) *world {
	w := &world{plan: p, clock: newTicker(), settle: newSettler(), table: newPatternTable(p.Seed),
		broken: map[[2]uint16]bool{}}
	w.net = newNetwork(p.Net, w.clock, p.Seed)
	w.net.plan.PathMTU = 0 // until startFaults
	if p.leased() {
		w.net.plan.Harm = Harm{}
	}
	w.net.watch, w.net.largest = p.Watch, p.largestMTU()
	for i, hp := range p.Hosts {
		w.hosts = append(w.hosts, w.newHost(i, hp))
	}
	for i, hp := range p.Hosts { // behind the hosts: their ports have their numbers
		if hp.Fallback {
			h := w.hosts[i].(*ourHost)
			h.netdev = w.net.plugNetdev(fmt.Sprint("eth", i), hp.Netdev)
			h.netdev.port.inspect.syns = h.port.inspect.syns
		}
	}
	return w
}

func (w *world) newHost(i int, p HostPlan) host {
	port, seed := w.net.plug(w.plan.ordered(i)), w.plan.Seed<<8+uint64(i)
	c := &timers{Source: w.clock, busy: &w.calls, set: map[*hostTimer]bool{}}
	switch p.Kind {
	case Plain:
		return &plainHost{plan: p, index: i, port: port, clock: c, mtu: w.plan.Net.MTU, seed: seed}
	case Scripted:
		return &scriptHost{index: i, port: port}
	case Leases:
		lasts := uint32(3600)
		if w.plan.moves() {
			lasts = movingLease
		}
		return &leaseHost{scriptHost: scriptHost{index: i, port: port}, lasts: lasts}
	}
	h := &ourHost{plan: p, index: i, port: port, clock: c, mtu: w.plan.Net.MTU, seed: seed,
		busy: &w.calls, faulty: w.plan.faulty(i), opened: make(chan struct{}),
		unseen: w.plan.has(ReceiveErrors) && w.plan.has(LostCompletion, LateCompletion,
			WrongCounter) || w.plan.has(SendErrors) && (w.plan.leaves() || w.plan.kills())}
	if p.OnHost {
		h.shareWithKernel(w.net)
		h.rulesStay = !p.Sockets && !w.plan.harmful()
	}
	if p.Upgraded {
		return newUpgradedHost(h, w.net)
	}
	return h
}

// ours is a host with package stack.
func (w *world) ours(i int) *ourHost {
	if h, ok := w.hosts[i].(*upgradedHost); ok {
		return h.ourHost
	}
	return w.hosts[i].(*ourHost)
}

// run takes the world from its beginning to its end.
func (w *world) run() error {
	if err := w.bringUp(); err != nil {
		return err
	}
	w.startFaults()
	w.startWork()
	late := time.Duration(0)
	if w.plan.moves() {
		late = moveLimit
	}
	if err := w.until(w.idle, w.calm-w.began+workLimit+late); err != nil {
		return err
	}
	for _, j := range w.jobs {
		if err := j.check(); err != nil {
			return err
		}
	}
	if err := w.until(w.gone, max(0, w.calm-w.clock.now())+goneLimit+late); err != nil {
		return err
	}
	return w.takeDown()
}

// bringUp brings all hosts up.
func (w *world) bringUp() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i, h := range w.hosts {
		w.spawn(fmt.Sprintf("host %d comes up", i), func(t *task) error { return h.up(ctx) })
		if err := w.rest(); err != nil { // one after the other: system calls change the order
			return err
		}
	}
	if err := w.until(w.idle, upLimit); err != nil {
		return err
	}
	w.began = w.clock.now()
	return nil
}

// answered says whether each SYN was answered by the time that it would have been sent again, where
// a process takes another's place and nothing else happens: no ring was full, either.
func (w *world) answered() error {
	if !w.plan.onlyUpgrades() || w.overflowed() {
		return nil
	}
	for i := range w.hosts {
		if n := w.net.ports[i].inspect.syns.again; n > 0 {
			return fmt.Errorf("host %d sent a SYN again, in %d cases, while nothing got lost", i, n)
		}
	}
	return nil
}

// merged counts the frames that links of ours have put into a packet with others.
func (w *world) merged() (n uint64) {
	for _, h := range w.hosts {
		if o, ours := h.(*ourHost); ours && o.stack != nil {
			n += o.stack.LinkStats().RxMerged
		}
	}
	return n
}

// inPlace counts the packets that hosts of ours have sent without copying.
func (w *world) inPlace() (n uint64) {
	for _, h := range w.hosts {
		if o, ours := h.(interface{ inPlace() uint64 }); ours {
			n += o.inPlace()
		}
	}
	return n
}

// overflowed reports whether frames came to a host of ours whose rings had no room for them.
func (w *world) overflowed() bool {
	return w.outOfBuffer() > 0
}

// takeDown takes all hosts down.
func (w *world) takeDown() error {
	if err := errors.Join(w.answered(), w.resentInVain()); err != nil {
		return err
	}
	for i, h := range w.hosts {
		if o, ok := h.(*ourHost); ok {
			w.spawn(fmt.Sprintf("host %d without connections", i), func(t *task) error {
				t.sleep(drainPause)
				if o.kernel != nil {
					t.sleep(sweepPause)
				}
				return o.drained()
			})
		}
	}
	if err := w.until(w.idle, downLimit); err != nil {
		return err
	}
	for i, h := range w.hosts {
		w.spawn(fmt.Sprintf("host %d goes down", i), func(*task) error { return h.down() })
		if err := w.rest(); err != nil {
			return err
		}
	}
	return w.until(w.idle, downLimit)
}

// idle: no task is left.
func (w *world) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		if !t.done {
			return false
		}
	}
	return true
}

// gone: no connection is left, and the last fault is over.
func (w *world) gone() bool {
	return w.endpointList() == "" && w.clock.now() >= w.calm
}

// leftovers reports what is left when all hosts are down.
func (w *world) leftovers(before int) error {
	for i, h := range w.hosts {
		if err := h.left(); err != nil {
			return fmt.Errorf("host %d has gone down: %w", i, err)
		}
	}
	if n := runtime.NumGoroutine(); n > before {
		return fmt.Errorf("%d goroutines are left", n-before)
	}
	return nil
}

// Memory: a run collects garbage when there is more than heapFloor, which it looks at after so many
// timers.
const (
	tidyEvery = 2048
	heapFloor = 96 << 20
)

// tidy collects garbage if there is much of it.
func tidy() {
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.HeapAlloc > heapFloor {
		runtime.GC()
	}
}

// goroutines is the stacks of all goroutines.
func goroutines() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
