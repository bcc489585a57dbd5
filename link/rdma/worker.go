package rdma

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// batchFrames are taken from the ring at most before delivery; bounds what can be merged, too.
const batchFrames = 256

// attachment is one attachment to a stack: a dispatcher and the workers that deliver to it.
type attachment struct {
	dispatcher gstack.NetworkDispatcher
	networks   atomic.Pointer[networks]
	stopping   atomic.Bool
	workers    sync.WaitGroup
	previous   *attachment // whose workers own the queues until they have ended; nil from then on
}

// networks is what Endpoint.BindStack found.
type networks struct {
	stack      *gstack.Stack
	nic        tcpip.NICID
	ipv4, ipv6 gstack.NetworkEndpoint
	fastPath   *fastPath // nil: there is none
}

func (s *attachment) stopped() bool { return s.stopping.Load() }

// stopWorkers tells the workers to stop.
func (s *attachment) stopWorkers(queues backend) {
	s.stopping.Store(true)
	for i := range queues.NumRx() {
		queues.rxQueue(i).Wake()
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

// worker is the owner of one receive queue during one attachment.
type worker struct {
	e          *Endpoint
	attachment *attachment
	q          rxQueue
	count      *rxCounters
	vlan       uint16 // ours, 0: none
	merge      *merger
	chunks     chunks
	spins      int // polls before parking; adapts to whether they pay
	limit      int

	shortest time.Duration // of the worker's yields; 0: none yet

	frames   [batchFrames]dv.Packet
	packets  [batchFrames]*gstack.PacketBuffer
	linear   [batchFrames]*buffer.View // frames that came in several pieces, by number in the batch
	segments [][]byte                  // of one such frame; scratch memory

	fast4, fast6 traffic        // by the fast path, of this batch
	sinks        []DatagramSink // that have taken datagrams of this batch
}

// traffic is packets and their bytes.
type traffic struct{ packets, bytes uint64 }

func (e *Endpoint) newWorker(s *attachment, i int) *worker {
	w := &worker{
		e: e, attachment: s, q: e.queues.rxQueue(i), count: &e.rx[i],
		vlan: e.queues.VLAN(), merge: newMerger(batchFrames),
	}
	w.merge.off = e.opts.NoMerge
	if runtime.GOMAXPROCS(0) > e.queues.NumRx()+1 { // else spinning takes the senders' time
		w.limit = e.queues.spins()
	}
	w.spins = min(minSpins, w.limit)
	return w
}

// poll delivers what there is and reports whether there was any.
func (w *worker) poll() bool {
	n := w.q.Poll(w.frames[:])
	if n > 0 {
		w.e.tx[w.q.Index()%len(w.e.tx)].tryReclaim()
		w.receive(n)
	}
	w.e.tryDrainAll()
	return n > 0
}
