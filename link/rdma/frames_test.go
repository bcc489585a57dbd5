package rdma

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// seed is logged, and overridable by TEST_SEED.
func seed(t testing.TB) *rand.Rand {
	n := rand.Uint64()
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatalf("TEST_SEED: %v", err)
		}
	}
	t.Logf("TEST_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 1))
}

const (
	ourMAC  = tcpframe.OurMAC
	peerMAC = tcpframe.PeerMAC
)

// tcpFrame is a frame with one TCP segment.
type tcpFrame = tcpframe.Frame

// parsed is the headers of a received frame.
func parsed(frame []byte) *hdr.Packet { return hdrtest.Parse(frame) }

// segment makes the n'th segment of a flow, 100 bytes each.
func segment(n int) tcpFrame { return tcpframe.Segment(n) }

// testWorker is a worker without a queue or a stack.
func testWorker() *worker {
	e := &Endpoint{rxLimit: DefaultRxLimit}
	e.flows = tcpfix.New(longSince{tcpip.NewStdClock()}, random.Source{}, e.resend,
		e.receiveKept)
	e.admission = newAdmission(e.flows.Key(), clock.Clock{})
	e.SetLinkAddress(ourMAC)
	return &worker{e: e, attachment: new(attachment), count: new(rxCounters),
		merge: newMerger(batchFrames, e.flows, e.opts.Clock)}
}

// longSince gives the time of a clock that began an hour earlier.
type longSince struct{ tcpip.Clock }

func (c longSince) NowMonotonic() tcpip.MonotonicTime {
	return c.Clock.NowMonotonic().Add(time.Hour)
}

// lone is the worker of receive queue 0, for a test to run.
func (e *Endpoint) lone(s *attachment) *worker {
	return e.newWorker(s, &workerGroup{queues: e.queues.Load().backend}, 0)
}

// load puts frames into the worker's batch, with the same flags for all.
func (w *worker) load(flags dv.RxFlags, frames ...[]byte) []dv.Packet {
	for i, f := range frames {
		w.frames[i] = dv.Packet{Data: f, Flags: flags}
	}
	return w.frames[:len(frames)]
}

// writeOne has the endpoint send a packet as a queueing discipline does.
func (e *Endpoint) writeOne(pkt *gstack.PacketBuffer) tcpip.Error {
	return e.writePacket(pkt, hdr.ParseSent(pkt, e.flows.Key()))
}
