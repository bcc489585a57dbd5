package kernel

import (
	"errors"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// faultBench is a sender and a receiver with a cable between them.
type faultBench struct {
	a, b *client
	s    *sender
	r    *receiver
}

func newFaultBench(t *testing.T) *faultBench {
	t.Helper()
	f := &faultBench{a: newClient(t, simnic.Config{Seed: 1}, Config{}),
		b: newClient(t, simnic.Config{Seed: 2}, Config{})}
	connect(t, f.a, f.b)
	f.r, f.s = f.b.receiver(nil), f.a.sender()
	return f
}

// Every named syndrome that a fault sets is in the CQE, on either side.
func TestInjectSyndromes(t *testing.T) {
	for _, syndrome := range mlx5.Syndromes() {
		t.Run(syndrome.String(), func(t *testing.T) {
			f := newFaultBench(t)
			send := f.a.nic.Inject(simnic.QueueFault{Kind: simnic.FaultSendError,
				Syndrome: uint8(syndrome), Vendor: 0x77, Skip: 1, Count: 1})
			f.s.send()
			f.s.send()
			if c := f.s.cq.next(); c == nil || c.Opcode() != mlx5.CQEReq {
				t.Errorf("the first send completed as %v", c)
			}
			if c := f.s.cq.next(); c == nil || c.Opcode() != mlx5.CQEReqErr ||
				c.Syndrome() != syndrome || c.VendorSyndrome() != 0x77 {
				t.Errorf("the second send completed as %v", c)
			}
			if send.Hits() != 1 {
				t.Errorf("struck %d times", send.Hits())
			}
		})
		t.Run("receive "+syndrome.String(), func(t *testing.T) {
			f := newFaultBench(t)
			f.b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultReceiveError,
				Syndrome: uint8(syndrome), Vendor: 0x32, Count: 1})
			f.s.send()
			if c := f.r.cq.next(); c == nil || c.Opcode() != mlx5.CQERecvErr ||
				c.Syndrome() != syndrome || c.VendorSyndrome() != 0x32 {
				t.Errorf("receive completed as %v", c)
			}
		})
	}
}

func TestInjectWrongCounter(t *testing.T) {
	f := newFaultBench(t)
	i := f.b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultWrongCounter, Skip: 1, Count: 1})
	for range 3 {
		f.s.send()
	}
	var got []uint16
	for c := f.r.cq.next(); c != nil; c = f.r.cq.next() {
		got = append(got, c.WQECounter())
	}
	if len(got) != 3 || got[0] != 0 || got[1] == 1 || got[2] != 2 || i.Hits() != 1 {
		t.Errorf("counters %d, struck %d times", got, i.Hits())
	}
}

func TestInjectStarvation(t *testing.T) {
	f := newFaultBench(t)
	i := f.b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultStarve, Count: 2})
	for range 3 {
		f.s.send()
	}
	if c := f.r.cq.next(); c == nil || c.WQECounter() != 0 {
		t.Errorf("the third frame completed as %v", c)
	}
	if c := f.r.cq.next(); c != nil {
		t.Errorf("one more completion: %v", c)
	}
	if got := f.b.nic.Counters().Drops.OutOfBuffer; got != 2 || i.Hits() != 2 {
		t.Errorf("%d frames found no buffer, struck %d times", got, i.Hits())
	}
}

func TestInjectLostAndLateCompletions(t *testing.T) {
	f := newFaultBench(t)
	lost := f.b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLoseCompletion,
		Queue: f.r.cq.CQN, Count: 1})
	f.s.send()
	f.s.send()
	if c := f.r.cq.next(); c == nil || c.WQECounter() != 1 {
		t.Errorf("the first completion to come is %v", c)
	}
	lost.Remove()
	late := f.b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLateCompletion,
		Delay: time.Hour, Skip: 1})
	f.s.send() // passes
	f.s.send() // is held
	if c := f.r.cq.next(); c == nil || c.WQECounter() != 2 {
		t.Errorf("the completion that passes is %v", c)
	}
	if c := f.r.cq.next(); c != nil {
		t.Errorf("a completion held for an hour came: %v", c)
	}
	late.Remove()
	q, _ := f.b.nic.CQ(f.r.cq.CQN)
	q.ReleaseHeld()
	if c := f.r.cq.next(); c == nil || c.WQECounter() != 3 {
		t.Errorf("the held completion is %v", c)
	}
}

// A delayed completion wakes the driver when it is written.
func TestLateCompletionComes(t *testing.T) {
	a, b := newClient(t, simnic.Config{Seed: 1}, Config{}),
		newClient(t, simnic.Config{Seed: 2}, Config{})
	connect(t, a, b)
	ch := must(b.ctx.CreateCompChannel())(t)
	r, s := b.receiver(ch), a.sender()
	b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLateCompletion,
		Delay: 5 * time.Millisecond, Count: 1})
	r.cq.arm(0)
	s.send()
	if n, err := ch.Wait(); n != 1 || err != nil || r.cq.next() == nil {
		t.Errorf("wait: %d, %v", n, err)
	}
}

// A queue that is destroyed while a completion is held back is left alone.
func TestLateCompletionOfADestroyedQueue(t *testing.T) {
	f := newFaultBench(t)
	f.a.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLateCompletion, Delay: time.Millisecond})
	f.s.send()
	if err := f.a.ctx.Close(); err != nil {
		t.Fatal(err)
	}
	clear(f.a.mem.Bytes())
	timer := time.NewTimer(20 * time.Millisecond)
	<-timer.C
	for i, v := range f.a.mem.Bytes() {
		if v != 0 {
			t.Fatalf("byte %#x was written after close", i)
		}
	}
}

func TestInjectLostDoorbell(t *testing.T) {
	f := newFaultBench(t)
	f.a.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLoseDoorbell, Count: 1})
	f.s.send()
	if c := f.s.cq.next(); c != nil {
		t.Errorf("sent without a doorbell: %v", c)
	}
	f.s.send()
	if first, second := f.s.cq.next(), f.s.cq.next(); first == nil || second == nil {
		t.Error("the next doorbell does not make up for the lost one")
	}
}

// Faults with a rate draw from their seed, and two faults can use the hooks.
func TestInjectRateAndSeveral(t *testing.T) {
	f := newFaultBench(t)
	seed := simtest.Seed(t)
	starve := f.b.nic.Inject(simnic.QueueFault{Kind: simnic.FaultStarve, Rate: 0.5, Seed: seed})
	lose := f.a.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLoseCompletion,
		Queue: f.s.cq.CQN, Rate: 0.5, Seed: seed})
	const n = 60
	for range n {
		f.s.send()
	}
	for name, i := range map[string]*simnic.Injection{"starvation": starve, "loss": lose} {
		if h := i.Hits(); h < n/5 || h > n*4/5 {
			t.Errorf("%s struck %d times of %d", name, h, n)
		}
	}
	starve.Remove()
	starve.Remove()
	lose.Remove()
}

// An overrun stops the CQ and all queues that complete into it, and raises an event.
func TestOverrunReachesTheClient(t *testing.T) {
	f := newFaultBench(t)
	q, _ := f.b.nic.CQ(f.r.cq.CQN)
	q.Fail(simnic.CQOverflow)
	seen := map[uverbs.EventType]uint64{}
	for len(seen) < 2 {
		e, err := f.b.ctx.AsyncEvents().ReadEvent()
		if err != nil {
			t.Fatal(err)
		}
		seen[e.Type] = e.Element
	}
	if seen[uverbs.EventCQError] != 0xc1 || seen[uverbs.EventWQFatal] != 0xb1 {
		t.Errorf("events are %v", seen)
	}
}

func TestPortEventsReachTheClient(t *testing.T) {
	f := newFaultBench(t)
	for _, up := range []bool{false, true} {
		f.b.nic.SetLink(up)
		f.b.nic.SetLink(up)
		e, err := f.b.ctx.AsyncEvents().ReadEvent()
		want := uverbs.AsyncEvent{Type: uverbs.EventPortError, Element: 1}
		state := uverbs.PortStateDown
		if up {
			want.Type, state = uverbs.EventPortActive, uverbs.PortStateActive
		}
		if err != nil || e != want {
			t.Errorf("event is %v, %v, want %v", e, err, want)
		}
		if p := must(f.b.ctx.QueryPort(1))(t); p.State != state {
			t.Errorf("port state is %d, want %d", p.State, state)
		}
	}
}

// A fatal device error first raises an event; then the descriptors read end of file, commands fail,
// and destroying still works.
func TestDeviceFatalReachesTheClient(t *testing.T) {
	f := newFaultBench(t)
	ch := must(f.b.ctx.CreateCompChannel())(t)
	f.b.nic.FailDevice()
	e, err := f.b.ctx.AsyncEvents().ReadEvent()
	if err != nil || e.Type != uverbs.EventDeviceFatal {
		t.Errorf("event is %v, %v", e, err)
	}
	if _, err := f.b.ctx.AsyncEvents().ReadEvent(); !errors.Is(err, unix.EIO) {
		t.Errorf("after the last event: %v", err)
	}
	if _, err := ch.Wait(); !errors.Is(err, unix.EIO) {
		t.Errorf("completion channel: %v", err)
	}
	if _, err := f.b.ctx.AllocPD(); !errors.Is(err, unix.EIO) {
		t.Errorf("allocate: %v", err)
	}
	if _, err := f.b.ctx.QueryPort(1); !errors.Is(err, unix.EIO) {
		t.Errorf("query: %v", err)
	}
	if err := f.r.flow.Close(); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if _, err := New(f.b.nic, Config{}).OpenNode(); !errors.Is(err, unix.EIO) {
		t.Errorf("open: %v", err)
	}
}
