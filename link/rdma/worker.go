package rdma

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	batchFrames = 256 // taken from the ring at most before delivery; bounds what can be merged, too
	maxSpins    = 2000
	minSpins    = 16

	// A yield shorter than idleYield found nobody else to run; after idleYields of them in a row the worker parks.
	idleYield  = time.Microsecond
	idleYields = 2
)

// session is one attachment to a stack: a dispatcher and the workers that deliver to it.
type session struct {
	dispatcher gstack.NetworkDispatcher
	networks   atomic.Pointer[networks]
	stop       atomic.Bool
	workers    sync.WaitGroup
	before     *session // whose workers own the queues until they have ended; nil from then on
}

// networks is what Endpoint.BindStack found.
type networks struct {
	ipv4, ipv6 gstack.NetworkEndpoint
	express    *express // nil: there is none
}

func (s *session) ended() bool { return s.stop.Load() }

// end tells the workers to stop.
func (s *session) end(dev *dv.Device) {
	s.stop.Store(true)
	for i := range dev.NumRx() {
		dev.Rx(i).Wake()
	}
}

// network is the stack's endpoint for a protocol, or nil.
func (s *session) network(proto tcpip.NetworkProtocolNumber) gstack.NetworkEndpoint {
	n := s.networks.Load()
	switch {
	case n == nil:
		return nil
	case proto == typeIPv4:
		return n.ipv4
	case proto == typeIPv6:
		return n.ipv6
	}
	return nil
}

// worker is the owner of one receive queue during one session.
type worker struct {
	e       *Endpoint
	session *session
	q       *dv.RxQueue
	count   *rxCounters
	merge   *merger
	spins   int // polls before parking; adapts to whether they pay
	limit   int
	frames  [batchFrames]dv.Packet
	packets [batchFrames]*gstack.PacketBuffer

	passed4, passed6 traffic // by the express lane, of this batch
}

// traffic is packets and their bytes.
type traffic struct{ packets, bytes uint64 }

func (e *Endpoint) newWorker(s *session, i int) *worker {
	w := &worker{e: e, session: s, q: e.dev.Rx(i), count: &e.rx[i], merge: newMerger(batchFrames)}
	w.merge.off = e.opts.NoMerge
	if runtime.GOMAXPROCS(0) > e.dev.NumRx()+1 { // else spinning takes the time of those who would send
		w.limit = maxSpins
	}
	w.spins = min(minSpins, w.limit)
	return w
}

// run polls until the session or the device ends.
func (w *worker) run() {
	for !w.session.ended() {
		if w.poll() || w.spin() {
			continue
		}
		if w.linger() {
			continue
		}
		w.q.Arm()
		if w.poll() {
			continue
		}
		if w.q.Wait() != nil {
			return
		}
	}
}

// linger lets other goroutines run, looking at the ring after each turn of theirs, for as long as there are any, and reports
// whether something came. A worker that parks while the processors are busy is not woken by its event: the scheduler
// asks the netpoller only when it has nothing else to run, or after 10 ms, by when a ring has long overrun. Whoever was about to
// send gets its turn, too, so the batch will be larger.
func (w *worker) linger() bool {
	for idle := 0; idle < idleYields && !w.session.ended(); {
		before := time.Now()
		runtime.Gosched()
		if w.poll() {
			return true
		}
		if time.Since(before) < idleYield {
			idle++
		} else {
			idle = 0
		}
	}
	return false
}

// poll delivers what there is and reports whether there was any.
func (w *worker) poll() bool {
	n := w.q.Poll(w.frames[:])
	if n > 0 {
		w.receive(n)
	}
	return n > 0
}

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
