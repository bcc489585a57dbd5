package tcpfix

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// oneProcessor makes runs reproducible.
func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// TestNetstackStalls: seeds on which netstack without resender stops forever, with no timer left,
// because it takes data in flight for nothing. When no seed stalls any more, resend.go is not
// needed any more.
func TestNetstackStalls(t *testing.T) {
	oneProcessor(t)
	stalled := 0
	for _, tc := range []struct {
		gso  bool
		loss float64
		seed uint64
	}{
		{true, 0.05, 450}, {false, 0.01, 54}, {false, 0.05, 734},
	} {
		var server atomic.Pointer[tcp.TCPSenderState] // at its last segment
		r := lossy{seed: tc.seed, loss: tc.loss, gso: tc.gso, alone: true,
			see: func(s *tcp.TCPEndpointState) {
				if s.ID.LocalPort == 80 {
					server.Store(&s.Sender)
				}
			}}.run()
		s := server.Load()
		t.Logf("gso %v, loss %v, seed %d: %+v, in flight %d bytes, %d packets by netstack's count",
			tc.gso, tc.loss, tc.seed, r,
			s.SndUna.Size(s.SndNxt), s.Outstanding)
		if !r.done && s.SndUna != s.SndNxt && s.Outstanding == 0 {
			stalled++
		}
	}
	if stalled == 0 {
		t.Error("netstack has stalled on none of the seeds: resend.go may be done with")
	}
}

// lossyKind is the difference between runs besides the seed.
type lossyKind struct {
	loss        float64
	gso, upload bool
}

func (k lossyKind) run(seed uint64) outcome {
	return lossy{seed: seed, loss: k.loss, gso: k.gso, upload: k.upload}.run()
}

// wrong describes the fault of a run. Handshakes without a frame that arrives for two minutes do
// not count.
func (k lossyKind) wrong(r outcome) string {
	took, still := time.Minute, 20*time.Second
	if k.loss > 0.05 {
		took, still = lossyLimit, 2*time.Minute
	}
	switch {
	case !r.connected && r.took > 2*time.Minute && k.loss > 0.05:
		return ""
	case !r.done:
		return "has stopped for good"
	case r.took > took:
		return "took too long"
	case r.still > still:
		return "stood still for too long"
	}
	return ""
}

// TestLossyWireStalled: seeds on which a connection stopped forever, or for minutes, before there
// was a resender, with acknowledgements as they come. With the race detector it runs the first of
// each kind; make test runs all without.
func TestLossyWireStalled(t *testing.T) {
	oneProcessor(t)
	for _, tc := range []struct {
		kind  lossyKind
		seeds []uint64
	}{
		{lossyKind{0.01, true, true}, []uint64{628, 878}},
		{lossyKind{0.01, false, false}, []uint64{54}},
		{lossyKind{0.01, false, true}, []uint64{54}},
		{lossyKind{0.15, true, false}, []uint64{35, 108, 113, 136, 208}},
		{lossyKind{0.15, true, true}, []uint64{94, 113, 141, 239}},
		{lossyKind{0.15, false, false}, []uint64{43, 68, 116, 186}},
		{lossyKind{0.15, false, true}, []uint64{21, 43, 138, 186}},
	} {
		if racing.Detector {
			tc.seeds = tc.seeds[:1]
		}
		for _, seed := range tc.seeds {
			k := tc.kind
			r := lossy{seed: seed, loss: k.loss, gso: k.gso, upload: k.upload,
				noReorder: true}.run()
			if k.wrong(r) != "" || r.resent == 0 {
				t.Errorf("%+v, seed %d %s: %+v", k, seed, k.wrong(r), r)
			}
		}
	}
}

// seeds are the seeds to run of each kind: LOSSY_SEEDS, from LOSSY_FROM on, or a few.
func seeds(t *testing.T) (from, to uint64) {
	from, n := uint64(0), uint64(100)
	if racing.Detector {
		n = 2
	}
	for name, v := range map[string]*uint64{"LOSSY_FROM": &from, "LOSSY_SEEDS": &n} {
		if s := os.Getenv(name); s != "" {
			var err error
			if *v, err = strconv.ParseUint(s, 10, 64); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	return from, from + n
}

// TestLossyWire: no connection stops forever, and none stalls for long, whatever is lost.
// The slowest of the first 100 seeds with 15 % loss, seed 45, takes 29 s: of one segment three
// acknowledgements are lost and then three copies, and the timeouts double as RFC 6298 section 5.5
// has it: 0.2, 0.4, 0.8, 1.6, 3.3, 6.6 and 13 s.
//
// LOSSY_SEEDS=5000 makes it 60,000 runs. `make test` runs 1800, without the race detector, which
// makes it ten times slower.
func TestLossyWire(t *testing.T) {
	need.Long(t, "retransmission timeouts in real time, 23 s")
	oneProcessor(t)
	from, to := seeds(t)
	for _, loss := range []float64{0.01, 0.05, 0.15} {
		for _, gso := range []bool{true, false} {
			for _, upload := range []bool{false, true} {
				k := lossyKind{loss, gso, upload}
				t.Run(fmt.Sprintf("loss %v/gso %v/upload %v", loss, gso, upload),
					func(t *testing.T) { k.runs(t, from, to) })
			}
		}
	}
}

// runs runs all seeds before to.
func (k lossyKind) runs(t *testing.T, from, to uint64) {
	var worst outcome
	var sum time.Duration
	unconnected := 0
	for seed := from; seed < to; seed++ {
		r := k.run(seed)
		if wrong := k.wrong(r); wrong != "" {
			t.Errorf("seed %d %s: %+v", seed, wrong, r)
		}
		if !r.connected {
			unconnected++
			continue
		}
		worst.took, worst.still = max(worst.took, r.took), max(worst.still, r.still)
		worst.resent += r.resent
		sum += r.took
	}
	t.Logf("seeds %d to %d: mean %v, slowest %v, longest without a frame %v, %d segments sent by "+
		"the link, %d never connected",
		from, to-1, sum/time.Duration(to-from), worst.took, worst.still, worst.resent, unconnected)
}
