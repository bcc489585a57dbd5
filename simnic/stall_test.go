package simnic

import (
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// nop is a WQE that asks for a completion.
func nop() []byte {
	b := make([]byte, 64)
	mlx5.PutCtrl(b, mlx5.OpNOP, 0, 0, 0, 1, mlx5.CEAlways)
	return b
}

// A fault that stops send queues holds posted WQEs, of the named queue or of all, until it ends: by
// Remove, by itself, with the link.
func TestSendQueuesStandStill(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault QueueFault
		end   func(n *NIC, i *Injection)
	}{
		{"paused until removed", QueueFault{Kind: FaultPause},
			func(_ *NIC, i *Injection) { i.Remove() }},
		{"paused for 50 ms", QueueFault{Kind: FaultPause, Delay: 50 * time.Millisecond},
			func(*NIC, *Injection) {}},
		{"without link", QueueFault{Kind: FaultHoldWithoutLink},
			func(n *NIC, _ *Injection) { n.SetLink(true) }},
		{"without link until removed", QueueFault{Kind: FaultHoldWithoutLink},
			func(_ *NIC, i *Injection) { i.Remove() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNIC(t, Config{})
			cq := newCQ(t, n, 4, nil)
			sq, other := newSQ(t, n, cq, 4, nil), newSQ(t, n, newCQ(t, n, 4, nil), 4, nil)
			n.SetLink(c.fault.Kind != FaultHoldWithoutLink)
			c.fault.Queue = sq.Number()
			i := n.Inject(c.fault)
			for _, q := range []*testSQ{sq, other} {
				q.post(nop())
				q.post(nop())
				q.doorbell()
			}
			if n := n.Counters().SendWQEs; n != 2 && c.fault.Delay == 0 {
				t.Errorf("%d WQEs executed, want the 2 of the other queue", n)
			}
			if i.Hits() == 0 {
				t.Error("the fault has not struck")
			}
			c.end(n, i)
			for deadline := time.Now().Add(10 * time.Second); n.Counters().SendWQEs != 4; {
				if time.Now().After(deadline) {
					t.Fatal("what was held is not executed")
				}
				time.Sleep(time.Millisecond) // a pace, not a synchronisation
			}
			for range 2 {
				cq.mustPoll(t)
			}
			n.Close() // waits for the goroutine of the other queue, whose memory ends with the test
		})
	}
}

// A stopped queue is flushed, reset and destroyed as any other.
func TestStandingStillEnds(t *testing.T) {
	n := newNIC(t, Config{})
	n.Inject(QueueFault{Kind: FaultPause})
	cq := newCQ(t, n, 4, nil)
	sq := newSQ(t, n, cq, 4, nil)
	sq.post(nop())
	sq.doorbell()
	if err := sq.Modify(StateReady, StateError); err != nil {
		t.Fatal(err)
	}
	if e := cq.mustPoll(t); (*mlx5.CQE)(e).Syndrome() != mlx5.SynFlushed {
		t.Errorf("completion %x, want a flushed WQE", e)
	}
	if err := sq.Modify(StateError, StateReset); err != nil {
		t.Error(err)
	}
	if err := sq.Destroy(); err != nil {
		t.Error(err)
	}
}

// A queue of no transport domain sends no frames, only WQEs that change memory keys, by which the
// driver gives a striding receive queue its buffers: it executes them during a pause.
func TestPauseLeavesInternalQueues(t *testing.T) {
	n := newNIC(t, Config{})
	n.Inject(QueueFault{Kind: FaultPause})
	cq := newCQ(t, n, 4, nil)
	sq := newSQ(t, n, cq, 4, func(a *SQAttr) { a.TD, a.UMR = 0, true })
	sq.post(nop())
	sq.doorbell()
	if e := cq.mustPoll(t); (*mlx5.CQE)(e).Opcode().IsError() {
		t.Errorf("completion %x", e)
	}
}
