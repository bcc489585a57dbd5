package rdma

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// batchFrames are taken from the ring at most before delivery; bounds what can be merged, too.
const batchFrames = 256

// maxRest says how many batches are taken from a queue that is replaced: a whole ring or socket.
const maxRest = 256

// attachment is one attachment to a stack: the dispatcher that workers deliver to.
type attachment struct {
	dispatcher gstack.NetworkDispatcher
	networks   atomic.Pointer[networks]
	stopping   atomic.Bool
}

// workerGroup holds the workers of one attachment on one backend: a change of either starts
// another, whose workers wait until those before have ended.
type workerGroup struct {
	queues   backend
	replaced atomic.Bool // they deliver what there is, and end
	running  sync.WaitGroup

	spreaders []*spreader // of the backend's devices
}

// networks holds what Endpoint.BindStack found.
type networks struct {
	stack      *gstack.Stack
	nic        tcpip.NICID
	ipv4, ipv6 gstack.NetworkEndpoint
	fastPath   *fastPath // nil: there is none
}

// connected reports whether netstack has the connection of a TCP segment, be it a new one; true if
// nobody can tell.
func (n *networks) connected(s *hdr.Segment) bool {
	if n == nil {
		return true
	}
	tuple, _ := s.Flow()
	size := 4
	if s.EtherType == hdr.TypeIPv6 {
		size = 16
	}
	f := Flow{
		Proto:  hdr.ProtoTCP,
		Local:  tcpip.AddrFromSlice(tuple.Source()[:size]),
		Remote: tcpip.AddrFromSlice(tuple.Destination()[:size]),
	}
	f.LocalPort, f.RemotePort = tuple.Ports()
	state, found := n.socket(s.EtherType, f)
	return found && tcp.EndpointState(state) != tcp.StateListen
}

func (s *attachment) stopped() bool { return s.stopping.Load() }

// replace ends the workers once they have delivered what there is.
func (g *workerGroup) replace() {
	g.replaced.Store(true)
	g.wake()
	g.stopSpreaders()
}

func (g *workerGroup) stopSpreaders() {
	for _, s := range g.spreaders {
		s.stop()
	}
}

// wait waits until the workers, and what changes their queues' shares, have ended.
func (g *workerGroup) wait() {
	g.running.Wait()
	for _, s := range g.spreaders {
		s.wait()
	}
}

// wake has the workers look at what they are told.
func (g *workerGroup) wake() {
	for i := range g.queues.NumRx() {
		g.queues.rxQueue(i).Wake()
	}
}

// network returns the stack's endpoint for a protocol, or nil.
func (s *attachment) network(proto tcpip.NetworkProtocolNumber) gstack.NetworkEndpoint {
	n := s.networks.Load()
	switch {
	case n == nil:
		return nil
	case proto == hdr.TypeIPv4:
		return n.ipv4
	case proto == hdr.TypeIPv6:
		return n.ipv6
	}
	return nil
}

// worker holds the owner of one receive queue, as a member of its group.
type worker struct {
	e          *Endpoint
	attachment *attachment
	group      *workerGroup
	device     *dv.Device // whose q is; nil: none's
	deaf       bool       // what q has is dropped
	q          rxQueue
	number     int // of q among those of the group
	count      *rxCounters
	kind       BackendKind
	only       bool   // nobody else receives the unicast frames of q
	vlan       uint16 // ours, 0: none
	merge      *merger
	chunks     chunks
	spins      int // polls before parking; adapts to whether they pay
	limit      int

	idle     time.Duration // a yield that takes less found nothing to run
	shortest time.Duration // of the worker's yields; 0: none yet

	frames   [batchFrames]dv.Packet
	packets  [batchFrames]*gstack.PacketBuffer
	linear   [batchFrames]*buffer.View // frames that came in several pieces, by number in the batch
	segments [][]byte                  // of one such frame; scratch memory

	captured capture.Batch // of this batch, while there are taps
	refusal  string        // why the frame at hand is dropped
	nicTime  nicTime
	timed    bool // nicTime has followed this batch

	filter   filter.Batch // Options.Filter, for this batch
	filtered uint64       // frames of this batch that it drops

	origin origin // of the frames at hand
	away   []byte // the frame at hand for Steering.Send or Relay

	settled, passed *rendezvous // reached last

	fast4, fast6 traffic        // by the fast path, of this batch
	sinks        []DatagramSink // that have taken datagrams of this batch
	answered     bool           // sinks took all of the last batch, and are done with it
	found        foundSink      // that of the datagram before, in this batch
	payloads     [][]byte       // of datagrams for a sink; scratch memory
}

// traffic is packets and their bytes.
type traffic struct{ packets, bytes uint64 }

func (e *Endpoint) newWorker(s *attachment, g *workerGroup, i int) *worker {
	own := partOf(g.queues, i)
	w := &worker{
		e: e, attachment: s, group: g, q: g.queues.rxQueue(i), number: i, count: e.rxCounters()[i],
		kind: own.kind(), only: receivesOnly(own), vlan: e.vlan,
		merge: newMerger(batchFrames, e.flows, e.opts.Clock),
		idle:  idleLimit(g.queues.NumRx(), runtime.GOMAXPROCS(0)),
	}
	if on := devicesOf(own); len(on) == 1 {
		w.device = on[0]
	}
	if d, ok := own.(deafPart); ok {
		w.deaf = d.deaf()
	}
	w.merge.queue = i
	w.merge.off, w.chunks.off = e.opts.NoMerge, e.buffers.chunks != nil
	if runtime.GOMAXPROCS(0) > g.queues.NumRx()+1 { // else spinning takes the senders' time
		w.limit = own.spins()
	}
	w.spins = min(minSpins, w.limit)
	return w
}

// ending reports whether the worker is to end.
func (w *worker) ending() bool { return w.attachment.stopped() || w.group.replaced.Load() }

// deliverRest delivers what a queue that is replaced has received, up to a limit: it may go on to
// receive. A packet socket may leave out one look.
func (w *worker) deliverRest() {
	for n, misses := 0, 0; n < maxRest && misses < 2 && !w.attachment.stopped(); n++ {
		if w.poll() {
			misses = 0
		} else {
			misses++
		}
	}
}

// waitForFrames parks until the queue has frames, or is woken or ends.
func (w *worker) waitForFrames() error {
	if ring, ok := w.q.(*dv.RxQueue); ok && w.answered {
		return ring.WaitQuietly()
	}
	return w.q.Wait()
}

// poll delivers what there is and reports whether there was any.
func (w *worker) poll() bool {
	n := w.take()
	if n > 0 {
		r := region(regionDeliver)
		w.e.tx[w.q.Index()%len(w.e.tx)].tryReclaim()
		w.receive(n)
		endRegion(r)
	}
	w.e.tryDrainAll()
	return n > 0
}

// RxMode is how a receive worker waits for frames, by the names that VPP has for it ("set interface
// rx-mode").
type RxMode uint8

// The modes. The counters of a queue (dv.RxStats) show which is on: polling asks for no event
// (Arms), interrupt looks at the ring twice in vain per event asked for, adaptive looks more often.
const (
	// RxAdaptive looks at the ring for a while, the longer the more that pays, and then sleeps
	// until the NIC reports a frame.
	RxAdaptive RxMode = iota
	// RxPolling never sleeps and asks for no event: the shortest delay, for a whole processor per
	// receive queue. It needs more processors than receive queues: without, files and sockets of
	// the host are attended to every 10 ms only.
	RxPolling
	// RxInterrupt sleeps as soon as the ring is empty: the least work per second at low rates, for
	// a wake-up per batch.
	RxInterrupt
)

var rxModes = [...]string{RxAdaptive: "adaptive", RxPolling: "polling", RxInterrupt: "interrupt"}

// String implements fmt.Stringer.
func (m RxMode) String() string {
	if int(m) < len(rxModes) {
		return rxModes[m]
	}
	return fmt.Sprintf("RxMode(%d)", uint8(m))
}

// Validate says in one sentence what is wrong with m, or nil.
func (m RxMode) Validate() error {
	if int(m) >= len(rxModes) {
		return fmt.Errorf("there is no %s; use RxAdaptive, RxPolling or RxInterrupt", m)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (m RxMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: polling (or poll), adaptive, interrupt.
func (m *RxMode) UnmarshalText(text []byte) error {
	name := string(text)
	if name == "poll" {
		name = rxModes[RxPolling]
	}
	for i, s := range rxModes {
		if s == name {
			*m = RxMode(i)
			return nil
		}
	}
	return fmt.Errorf("want polling, adaptive or interrupt")
}

const (
	maxSpins = 2000
	minSpins = 16

	// A yield found nobody else to run, or only other workers that look in vain, if it took less
	// than what idleLimit says, or on a slow machine not much more than the shortest one so far,
	// but no more than longestIdleYield. After idleYields of them in a row the worker parks.
	idleYield        = time.Microsecond
	longestIdleYield = 20 * time.Microsecond
	idleYields       = 2

	// pollsPerYield says how often a worker that never sleeps looks before it lets others run.
	pollsPerYield = 64
)

// run works until the attachment or the device ends, or the queue is replaced.
func (w *worker) run() {
	defer w.chunks.release()
	defer w.count.waiting.release()
	mode := w.e.opts.RxMode
	if w.e.opts.Clock.Virtual() || w.kind != w.group.queues.kind() {
		mode = RxInterrupt // time stands still while others spin; sockets beside rings have little
	}
	switch mode {
	case RxPolling:
		w.runPolling()
	case RxInterrupt:
		w.runParking(func() bool { return false })
	default:
		w.runParking(func() bool { return w.spin() || w.linger() })
	}
	w.deliverRest()
	if w.device == nil {
		w.q.Poll(nil) // gives back the frames of the last batch
	}
}

// runParking sleeps when there is nothing and look, too, finds nothing.
func (w *worker) runParking(look func() bool) {
	for !w.ending() {
		r := region(regionPoll)
		found := w.poll() || look()
		endRegion(r)
		if found {
			continue
		}
		w.q.Arm()
		if w.poll() {
			continue
		}
		w.count.waiting.collect()
		if w.waitForFrames() != nil {
			return
		}
	}
}

// runPolling does not sleep.
func (w *worker) runPolling() {
	for !w.ending() {
		r, found := region(regionPoll), false
		for range pollsPerYield {
			found = w.poll() || found
		}
		endRegion(r)
		if found {
			continue
		}
		select {
		case <-w.group.queues.Done():
			return
		default:
			runtime.Gosched()
		}
	}
}

// spin looks again and again, adapting to whether it pays.
func (w *worker) spin() bool {
	for range w.spins {
		if w.poll() {
			w.spins = min(2*w.spins, w.limit)
			return true
		}
	}
	w.spins = max(w.spins/2, min(minSpins, w.limit))
	return false
}

// linger lets other goroutines run, looking at the ring after each turn of theirs, for as long as
// there are any, and reports whether something came. A worker that parks while the processors are
// busy is not woken by its event: the scheduler asks the netpoller only when it has nothing else to
// run, or after 10 ms, by when a ring has long overrun. Goroutines about to send get their turn,
// too, so the batch will be larger.
func (w *worker) linger() bool {
	for idle := 0; idle < idleYields && !w.ending(); {
		before := w.e.opts.Clock.Now()
		runtime.Gosched()
		if w.poll() {
			return true
		}
		if w.idleYield(w.e.opts.Clock.Since(before)) {
			idle++
		} else {
			idle = 0
		}
	}
	return false
}

// idleLimit returns how long a yield takes at most that runs nothing but other workers, each of
// which finds nothing: idleYield for each that may be on this processor, and as much again, for
// they are not spread evenly. A limit without regard to them has workers take each other for work
// that is to be done, none of them parks, and each yield wakes another processor.
func idleLimit(queues, processors int) time.Duration {
	return max(idleYield, 2*idleYield*time.Duration(queues)/time.Duration(processors))
}

// idleYield reports whether a yield that took so long found nothing to run.
func (w *worker) idleYield(took time.Duration) bool {
	if w.shortest == 0 || took < w.shortest {
		w.shortest = max(took, 1)
	}
	return took < max(w.idle, min(2*w.shortest, longestIdleYield))
}

// rendezvous is something that each worker reaches once.
type rendezvous struct {
	left atomic.Int32 // workers that have not reached it
	done chan struct{}
}

// meet makes a rendezvous of the workers that there are.
func (e *Endpoint) meet(at *atomic.Pointer[rendezvous]) <-chan struct{} {
	r := &rendezvous{done: make(chan struct{})}
	e.mu.Lock()
	g := e.workers
	e.mu.Unlock()
	if g == nil {
		close(r.done)
		return r.done
	}
	r.left.Store(int32(g.queues.NumRx()))
	at.Store(r)
	g.wake()
	return r.done
}

// reach notes that one worker is there. seen is that worker's last rendezvous.
func (r *rendezvous) reach(seen **rendezvous) {
	*seen = r
	if r.left.Add(-1) == 0 {
		close(r.done)
	}
}

// Settled returns a channel that is closed once every worker has found its queue empty after this
// call: what the queues held before has been delivered. It stays open if the backend changes
// meanwhile, or a queue is never empty. A later call ends the former one.
func (e *Endpoint) Settled() <-chan struct{} { return e.meet(&e.settling) }

// Between returns a channel that is closed once no worker has a batch at hand any more that it had
// at the time of this call. It stays open if the backend changes meanwhile. A later call ends the
// former one.
func (e *Endpoint) Between() <-chan struct{} { return e.meet(&e.passing) }

// take takes a batch from the queue.
func (w *worker) take() int {
	if r := w.e.passing.Load(); r != nil && r != w.passed {
		r.reach(&w.passed)
	}
	r := w.e.settling.Load()
	n := w.q.Poll(w.frames[:])
	if n > 0 || r == nil || r == w.settled {
		return n
	}
	// a packet socket may leave out one look
	if n = w.q.Poll(w.frames[:]); n == 0 {
		r.reach(&w.settled)
	}
	return n
}

// Regions of an execution trace (runtime/trace). A worker is in regionPoll while it looks at its
// ring, in regionDeliver within that, and in none while it sleeps; whoever sends is in
// regionTransmit, a worker that acknowledges within regionDeliver. While no trace is taken a region
// costs one load.
const (
	regionPoll     = "poll"
	regionDeliver  = "deliver"
	regionTransmit = "transmit"
)

// region begins a region; nil while no trace is taken.
func region(name string) *trace.Region {
	if !trace.IsEnabled() {
		return nil
	}
	return trace.StartRegion(context.Background(), name)
}

// endRegion ends what region began, which may be nil.
func endRegion(r *trace.Region) {
	if r != nil {
		r.End()
	}
}

// runLabelled is run with labels for CPU profiles and lists of goroutines: device and queue.
func (w *worker) runLabelled() {
	labels := pprof.Labels("device", w.group.queues.Name(),
		"queue", "rx"+strconv.Itoa(w.q.Index()))
	pprof.Do(context.Background(), labels, func(context.Context) { w.run() })
}
