package simnic

import (
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// nops posts n NOPs that complete.
func (s *testSQ) nops(n int) {
	for range n {
		s.post(ctrl(0, 1))
	}
	s.doorbell()
}

// armed is a completion queue with a driver that counts events and keeps sn.
type armed struct {
	*testCQ
	sq     *testSQ
	nic    *NIC
	events int
	sn     uint32
}

func newArmed(t *testing.T, change func(*CQAttr)) *armed {
	return newArmedOn(t, newNIC(t, Config{}), change)
}

func newArmedOn(t *testing.T, nic *NIC, change func(*CQAttr)) *armed {
	a := &armed{nic: nic}
	a.testCQ = newCQ(t, a.nic, 4, func(c *CQAttr) {
		c.Completion = func(*CQ) { a.events++ }
		if change != nil {
			change(c)
		}
	})
	a.sq = newSQ(t, a.nic, a.testCQ, 4, nil)
	return a
}

func (a *armed) arm(ci uint32, solicited bool) {
	w := mlx5.ArmWord(a.sn, solicited, ci)
	a.rec.StoreBE32(4, w)
	a.nic.UARWrite(0, 0x20, uint64(w)<<32|uint64(a.Number()))
}

func (a *armed) expect(t *testing.T, what string, events int) {
	t.Helper()
	if a.events != events {
		t.Errorf("%s: %d events, want %d", what, a.events, events)
	}
}

func TestArm(t *testing.T) {
	a := newArmed(t, nil)
	a.sq.nops(1)
	a.expect(t, "not armed", 0)
	a.arm(0, false)
	a.expect(t, "armed behind the producer: at once", 1)
	a.arm(1, false)
	a.expect(t, "stale number", 1)
	if c := a.nic.Counters(); c.StaleArms != 1 {
		t.Errorf("%d stale requests", c.StaleArms)
	}
	a.sn = 1
	a.arm(1, false)
	a.expect(t, "armed, nothing new", 1)
	a.sq.nops(2)
	a.expect(t, "one event for two completions", 2)
	a.sq.nops(1)
	a.expect(t, "fired, not armed again", 2)
	a.sn = 2
	a.arm(4, true)
	a.sq.nops(1)
	a.expect(t, "unsolicited completion", 2)
	w := ctrl(0, 1)
	w[11] |= 2
	a.sq.post(w)
	a.sq.doorbell()
	a.expect(t, "solicited completion", 3)
	a.sn = 3
	a.arm(6, true)
	a.sq.post(ctrl(0x3f, 3))
	a.sq.doorbell()
	a.expect(t, "an error counts as solicited", 4)
	a.sn = 4
	a.arm(7, false)
	if len(a.nic.Violations()) != 0 {
		t.Errorf("violations %q", a.nic.Violations())
	}
	a.arm(9, false) // ahead of the producer
	a.sn = 6
	a.arm(7, false) // two events that were not raised
	if v := a.nic.Violations(); len(v) != 2 {
		t.Errorf("violations %q", v)
	}
	a.rec.StoreBE32(4, 0)
	a.nic.UARWrite(0, 0x20, uint64(mlx5.ArmWord(4, false, 7))<<32|uint64(a.Number()))
	if v := a.nic.Violations(); len(v) != 3 {
		t.Errorf("record not written: %q", v)
	}
}

func TestArmAtIndexWrap(t *testing.T) {
	a := newArmed(t, func(c *CQAttr) { c.StartIndex = 0xffffff })
	a.arm(0xffffff, false)
	a.sq.nops(2)
	a.expect(t, "across 2^24", 1)
	a.sn = 1
	a.arm(0x1000001, false)
	a.expect(t, "all seen", 1)
	a.sq.nops(1)
	a.expect(t, "next", 2)
	clean(t, a.nic)
}

// TestModeration determines for how many completions and how long an event is held, by what the
// period begins with.
func TestModeration(t *testing.T) {
	const period = 60 * time.Microsecond
	us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	for _, tt := range []struct {
		name  string
		mode  PeriodMode
		count uint16
		// after each of these a completion is written, for which the queue is armed
		pauses []time.Duration
		want   []time.Duration // when events come
	}{
		{"the first is told of at once, then one per period", PeriodFromEvent, 100,
			[]time.Duration{us(1000), us(10), us(10), us(10), us(100)},
			[]time.Duration{us(1000), us(1060), us(1130)}},
		{"by the count", PeriodFromEvent, 3,
			[]time.Duration{us(1000), us(10), us(10), us(10), us(10)},
			[]time.Duration{us(1000), us(1030), us(1090)}},
		{"from the last completion", PeriodFromCompletion, 100,
			[]time.Duration{us(1000), us(50), us(50), us(100), us(10)},
			[]time.Duration{us(1160), us(1270)}},
		{"from the last completion, by the count", PeriodFromCompletion, 3,
			[]time.Duration{us(1000), us(50), us(50)}, []time.Duration{us(1100)}},
		{"no count", PeriodFromEvent, 0, []time.Duration{us(1000), us(10)},
			[]time.Duration{us(1000), us(1010)}},
	} {
		at := clocktest.New()
		began := at.Now()
		var mu sync.Mutex
		var events []time.Duration
		came := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(events)
		}
		a := newArmedOn(t, newNIC(t, Config{Clock: at.Clock()}), func(c *CQAttr) {
			c.Completion = func(*CQ) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, at.Now().Sub(began))
			}
		})
		if err := a.Moderate(tt.count, uint16(period/time.Microsecond)); err != nil {
			t.Fatal(err)
		}
		a.SetPeriodMode(tt.mode)
		for i, pause := range tt.pauses {
			at.Advance(pause)
			if n := uint32(len(came())); i == 0 || n != a.sn {
				a.sn = n
				a.arm(uint32(i), false)
			}
			a.sq.nops(1)
		}
		at.Advance(time.Millisecond)
		if got := came(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: events at %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestOverrun(t *testing.T) {
	events := make(chan Event, 8)
	note := func(e Event) { events <- e }
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 2, func(a *CQAttr) { a.Events = note })
	sq := newSQ(t, n, cq, 5, func(a *SQAttr) { a.Events = note })
	rq := newRQ(t, n, cq, 4, 4, func(a *RQAttr) { a.Events = note })
	sq.nops(4)
	for range 4 {
		cq.mustPoll(t)
	}
	sq.nops(5) // one too many
	got := map[EventType]int{}
	for range 3 {
		got[(<-events).Type]++
	}
	if got[EventCQError] != 1 || got[EventSQFatal] != 1 || got[EventRQFatal] != 1 {
		t.Errorf("events %v", got)
	}
	for range 4 {
		cq.mustPoll(t)
	}
	if cq.Status() != CQOverflow || sq.State() != StateError ||
		rq.State() != StateError || cq.poll() != nil {
		t.Errorf("status %d, states %v %v", cq.Status(), sq.State(), rq.State())
	}
	sq.nops(1)
	if cq.poll() != nil {
		t.Error("completion in a failed queue")
	}
	if c := n.Counters(); c.CQOverruns != 1 {
		t.Errorf("%d overruns", c.CQOverruns)
	}
	clean(t, n)
}

func TestOverrunIgnored(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 2, func(a *CQAttr) { a.IgnoreOverrun = true })
	sq := newSQ(t, n, cq, 5, nil)
	sq.nops(9)
	if e := cq.entry(8); be16(e[0x3c:]) != 8 || e[0x3f]&1 != 0 || cq.Status() != CQOK {
		t.Errorf("entry %x", e)
	}
}

func TestCollapsed(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 0, func(a *CQAttr) { a.Collapsed = true })
	sq := newSQ(t, n, cq, 5, nil)
	sq.nops(7)
	if e := cq.entry(0); be16(e[0x3c:]) != 6 {
		t.Errorf("entry %x", e)
	}
}

func TestLargeEntries(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 2, func(a *CQAttr) { a.EntrySize = 128 })
	sq := newSQ(t, n, cq, 5, nil)
	for i := range uint16(10) {
		sq.nops(1)
		if e := cq.mustPoll(t); be16(e[0x3c:]) != i {
			t.Errorf("completion %x", e)
		}
	}
	if cq.ring.Bytes()[0] != 0xa5 || cq.ring.Bytes()[63] != 0xa5 {
		t.Error("lower half of an entry was written")
	}
}

func TestConsumerIndexIsChecked(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 2, nil)
	sq := newSQ(t, n, cq, 5, nil)
	sq.nops(4)
	cq.rec.StoreBE32(0, 3) // three of four have been read
	sq.nops(2)
	cq.rec.StoreBE32(0, 2) // one is taken back
	if _, consumer := cq.Indices(); consumer != 3 {
		t.Errorf("consumer index %d", consumer)
	}
	if v := n.Violations(); len(v) != 1 || cq.Status() != CQOK {
		t.Errorf("status %d, violations %q", cq.Status(), v)
	}
}

// TestConsumerIndexOutside: a queue whose driver writes the consumer index in another byte order is
// served on, as by cards, and each such index is counted.
func TestConsumerIndexOutside(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 10, nil)
	sq := newSQ(t, n, cq, 5, nil)
	for i := range uint32(5000) {
		sq.nops(1)
		cq.mustPoll(t)
		cq.rec.StoreBE32(0, bits.ReverseBytes32(i+1))
	}
	if c := n.Counters(); cq.Status() != CQOK || c.Violations == 0 || c.CQOverruns != 0 {
		t.Errorf("status %d, %+v", cq.Status(), c)
	}
}

// TestCQWraps checks index and owner bit over several passes and across 2^24.
func TestCQWraps(t *testing.T) {
	for _, start := range []uint32{0, 0xfffff0} {
		n := newNIC(t, Config{})
		cq := newCQ(t, n, 3, func(a *CQAttr) { a.StartIndex = start })
		sq := newSQ(t, n, cq, 3, nil)
		for i := range 100 {
			sq.nops(1 + i%8)
			for range 1 + i%8 {
				cq.mustPoll(t)
			}
			if e := cq.poll(); e != nil {
				t.Fatalf("completion too many: %x", e)
			}
		}
		clean(t, n)
	}
}

func TestResize(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 3, nil)
	sq := newSQ(t, n, cq, 5, nil)
	sq.nops(2)
	ring := mem(t, 4096)
	if err := cq.Resize(NewMemory(ring), 4); err != nil {
		t.Fatal(err)
	}
	cq.mustPoll(t)
	cq.mustPoll(t)
	if e := cq.mustPoll(t); e[0x3f]>>4 != 5 {
		t.Errorf("no RESIZE_CQ: %x", e)
	}
	cq.ring, cq.log = ring, 4
	for i := range 16 {
		ring.Bytes()[i*64+63] = 0xf0
	}
	sq.nops(1)
	if e := cq.mustPoll(t); be16(e[0x3c:]) != 2 {
		t.Errorf("in the new ring: %x", e)
	}
}

// TestNoCompletionAfterReset: completions that a fault holds back are written before a queue that
// completes there is in the reset state, and none of it afterwards.
func TestNoCompletionAfterReset(t *testing.T) {
	virtual := clocktest.New()
	r := newRecvRig(t, recvOptions{cfg: Config{Clock: virtual.Clock()}})
	r.rq.post(seg(2048, r.key.Key(), r.addr))
	r.nic.Inject(QueueFault{Kind: FaultLateCompletion, Delay: time.Hour})
	r.give(frame60)
	if n := count(r.cq); n != 0 {
		t.Fatalf("%d completions are not held back", n)
	}
	if err := r.rq.Modify(StateReady, StateReset); err != nil {
		t.Fatal(err)
	}
	if n := count(r.cq); n != 1 {
		t.Errorf("%d completions when the queue is reset, want 1", n)
	}
	virtual.Advance(2 * time.Hour)
	if n := count(r.cq); n != 0 {
		t.Errorf("%d completions came after the reset", n)
	}
}

func TestHeldCompletions(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 4, nil)
	sq := newSQ(t, n, cq, 5, nil)
	i := 0
	n.SetHooks(&Hooks{Complete: func(*CQ) (lose, hold bool) { i++; return i == 1, i == 3 }})
	sq.nops(4)
	if e := cq.mustPoll(t); be16(e[0x3c:]) != 1 || cq.poll() != nil {
		t.Errorf("completion %x", e)
	}
	n.SetHooks(nil)
	cq.ReleaseHeld()
	for _, want := range []uint16{2, 3} {
		if e := cq.mustPoll(t); be16(e[0x3c:]) != want {
			t.Errorf("completion %x, want %d", e, want)
		}
	}
}
