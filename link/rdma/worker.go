package rdma

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// batchFrames are taken from the ring at most before delivery; bounds what can be merged, too.
const batchFrames = 256

// maxRest is how many batches are taken from a queue that is replaced: a whole ring or socket.
const maxRest = 256

// attachment is one attachment to a stack: the dispatcher that workers deliver to.
type attachment struct {
	dispatcher gstack.NetworkDispatcher
	networks   atomic.Pointer[networks]
	stopping   atomic.Bool
}

// workerGroup is the workers of one attachment on one backend: a change of either starts another,
// whose workers wait until those before have ended.
type workerGroup struct {
	queues   backend
	replaced atomic.Bool // they deliver what there is, and end
	running  sync.WaitGroup

	spreaders []*spreader // of the backend's devices
}

// networks is what Endpoint.BindStack found.
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

// replace has the workers end once they have delivered what there is.
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

// network is the stack's endpoint for a protocol, or nil.
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

// worker is the owner of one receive queue, as a member of its group.
type worker struct {
	e          *Endpoint
	attachment *attachment
	group      *workerGroup
	device     *dv.Device // whose q is; nil: none's
	deaf       bool       // what q has is dropped
	q          rxQueue
	count      *rxCounters
	kind       BackendKind
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

	origin origin // of the frames at hand
	away   []byte // the frame at hand for Steering.Send or Relay

	settled, passed *rendezvous // reached last

	fast4, fast6 traffic        // by the fast path, of this batch
	sinks        []DatagramSink // that have taken datagrams of this batch
}

// traffic is packets and their bytes.
type traffic struct{ packets, bytes uint64 }

func (e *Endpoint) newWorker(s *attachment, g *workerGroup, i int) *worker {
	own := partOf(g.queues, i)
	w := &worker{
		e: e, attachment: s, group: g, q: g.queues.rxQueue(i), count: e.rxCounters()[i],
		kind: own.kind(), vlan: e.vlan, merge: newMerger(batchFrames),
		idle: idleLimit(g.queues.NumRx(), runtime.GOMAXPROCS(0)),
	}
	if on := devicesOf(own); len(on) == 1 {
		w.device = on[0]
	}
	if d, ok := own.(deafPart); ok {
		w.deaf = d.deaf()
	}
	w.merge.off = e.opts.NoMerge
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
