package simnic

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// stepClock implements a clock whose timers the test runs one by one. It makes thousands of steps
// where clocktest would settle as often.
type stepClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*stepTimer // all that were made
}

type stepTimer struct {
	clock *stepClock
	at    time.Time
	f     func()
	set   bool
}

func (c *stepClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &stepTimer{clock: c, f: f}
	t.Reset(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = append(c.timers, t)
	return t
}

func (t *stepTimer) Stop() bool { return t.change(false, 0) }

func (t *stepTimer) Reset(d time.Duration) bool { return t.change(true, d) }

func (t *stepTimer) change(set bool, d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := t.set
	t.set, t.at = set, t.clock.now.Add(d)
	return was
}

// advance goes to the next timer that is due by end and runs it, or to end. It reports which.
func (c *stepClock) advance(end time.Time) bool {
	c.mu.Lock()
	var next *stepTimer
	for _, t := range c.timers {
		if t.set && !t.at.After(end) && (next == nil || t.at.Before(next.at)) {
			next = t
		}
	}
	if next == nil {
		c.now = end
		c.mu.Unlock()
		return false
	}
	c.now, next.set = next.at, false
	c.mu.Unlock()
	next.f()
	return true
}

// meter wraps a wire and counts the bytes of each queue, whose number is in the frame.
type meter struct {
	recorder
	bytes map[uint16]int
}

func (m *meter) Send(fs []frame.Frame) (int, error) {
	for _, f := range fs {
		m.bytes[binary.BigEndian.Uint16(f.Data[14:])] += len(f.Data)
	}
	return len(fs), nil
}

// pacedRig holds a NIC with queues that are kept busy.
type pacedRig struct {
	t     *testing.T
	nic   *NIC
	clock *stepClock
	wire  *meter
	sqs   []*testSQ
	wqes  [][]byte
}

const pacedFrame = 1500 // bytes

func newPacedRig(t *testing.T, queues int) *pacedRig {
	r := &pacedRig{t: t, clock: &stepClock{now: time.Unix(1000, 0)},
		wire: &meter{bytes: map[uint16]int{}}}
	r.nic = newNIC(t, Config{Clock: clock.New(r.clock)})
	if err := r.nic.ConnectWire(r.wire); err != nil {
		t.Fatal(err)
	}
	cq := newCQ(t, r.nic, 4, nil)
	m := mem(t, 2048*queues)
	key := newKey(t, r.nic, m, nil)
	for i := range queues {
		b := m.Bytes()[2048*i:]
		copy(b, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
		binary.BigEndian.PutUint16(b[14:], uint16(i))
		w := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0),
			seg(pacedFrame, key.Key(), m.Addr()+uint64(2048*i)))
		w[11] = 0 // no completion
		r.wqes = append(r.wqes, w)
		r.sqs = append(r.sqs, newSQ(t, r.nic, cq, 6, nil))
	}
	return r
}

// fill posts until the ring of each queue is full.
func (r *pacedRig) fill() {
	for i, s := range r.sqs {
		s.mu.Lock()
		left := int(s.pc - s.hwCI)
		s.mu.Unlock()
		if left > 32 {
			continue
		}
		for range 1<<s.log - left {
			s.post(r.wqes[i])
		}
		s.doorbell()
	}
}

// run keeps the queues busy for d and returns the bytes each has sent.
func (r *pacedRig) run(d time.Duration) map[uint16]int {
	clear(r.wire.bytes)
	r.fill()
	step := 0
	for end := r.clock.Now().Add(d); r.clock.advance(end); step++ {
		r.nic.background.running.Wait()
		if step%32 == 0 { // a step sends one frame
			r.fill()
		}
	}
	return r.wire.bytes
}

func (r *pacedRig) limit(i int, bitsPerSecond uint64, burst int) {
	r.t.Helper()
	if err := r.sqs[i].LimitRate(bitsPerSecond, burst); err != nil {
		r.t.Fatal(err)
	}
}

// TestPacing: a busy queue sends its rate within 2 % and one frame in any 10 ms, whatever the rates
// of the others are.
func TestPacing(t *testing.T) {
	const span = 10 * time.Millisecond
	for _, tc := range []struct {
		queues int
		lowest uint64 // of queue 0; the others have up to spread times as much
		spread uint64
	}{{1, 1e6, 1}, {1, 1e7, 1}, {1, 1e8, 1}, {1, 1e9, 1}, {1, 1e10, 1}, {16, 1e6, 1000},
		{128, 1e6, 64}} {
		t.Run(fmt.Sprintf("%d queues from %d bit/s", tc.queues, tc.lowest), func(t *testing.T) {
			r := newPacedRig(t, tc.queues)
			rates := make([]uint64, tc.queues)
			for i := range rates {
				rates[i] = tc.lowest + tc.lowest*(tc.spread-1)*uint64(i)/uint64(tc.queues)
				r.limit(i, rates[i], 0)
			}
			total := map[uint16]int{}
			worst := 0.0
			for range 5 {
				for i, n := range r.run(span) {
					want := float64(rates[i]) / 8 * span.Seconds()
					off := max(float64(n)-want, want-float64(n)) - pacedFrame
					worst = max(worst, off/want)
					total[i] += n
				}
			}
			for i, rate := range rates {
				want := float64(rate) / 8 * 5 * span.Seconds()
				if got := float64(total[uint16(i)]); got < want*0.98-pacedFrame ||
					got > want*1.02+pacedFrame {
					t.Errorf("%d bit/s: %v bytes in 50 ms, want %v", rate, got, want)
				}
			}
			t.Logf("off by %.3f %% in 10 ms at most", max(worst, 0)*100)
			if worst > 0.02 {
				t.Errorf("off by %.2f %% and a frame in 10 ms", worst*100)
			}
		})
	}
}

// TestPacingChange: a new rate, no limit and a reset hold at once; a burst leaves after a pause.
func TestPacingChange(t *testing.T) {
	r := newPacedRig(t, 2)
	r.limit(0, 12e6, 0) // a frame per ms
	r.limit(1, 12e6, 0)
	want := func(what string, got map[uint16]int, zero, one int) {
		t.Helper()
		if got[0] != zero*pacedFrame || got[1] != one*pacedFrame {
			t.Errorf("%s: %d and %d bytes, want %d and %d frames", what, got[0], got[1], zero, one)
		}
	}
	want("12 Mbit/s", r.run(10*time.Millisecond), 11, 11) // the first at once
	r.limit(0, 120e6, 0)
	want("one at 120 Mbit/s", r.run(10*time.Millisecond), 101-1, 10)
	clear(r.wire.bytes)
	r.limit(0, 0, 0)
	if got := r.wire.bytes[0]; got == 0 {
		t.Error("nothing left when the limit was taken away")
	}
	if err := r.sqs[1].Modify(StateReady, StateReset); err != nil {
		t.Fatal(err)
	}
	if err := r.sqs[1].LimitRate(1000, 0); err == nil {
		t.Error("a queue in reset took a rate")
	}
	for _, timer := range r.clock.timers {
		if timer.set {
			t.Error("a timer is set after the limit ended")
		}
	}
}

// TestPacingFlush: frames behind a WQE that fails when part of it was sent are flushed at once, not
// at the rate.
func TestPacingFlush(t *testing.T) {
	r := newPacedRig(t, 1)
	r.limit(0, 1e6, 0)
	bad := concat(ctrl(0x29, 4), r.wqes[0][16:], seg(pacedFrame, 1, 0))
	r.sqs[0].post(bad)
	for range 5 {
		r.sqs[0].post(r.wqes[0])
	}
	r.sqs[0].doorbell()
	if got := r.wire.bytes[0]; got != pacedFrame || r.sqs[0].State() != StateError {
		t.Fatalf("%d bytes left, and the queue is %v", got, r.sqs[0].State())
	}
	if left := r.sqs[0].pc - r.sqs[0].hwCI; left != 0 {
		t.Errorf("%d WQEs are left", left)
	}
}

// TestPacingDestroy: a queue whose frames wait can be destroyed, and sends nothing afterwards.
func TestPacingDestroy(t *testing.T) {
	r := newPacedRig(t, 1)
	r.limit(0, 1e6, 0)
	r.fill()
	if err := r.sqs[0].Destroy(); err != nil {
		t.Fatal(err)
	}
	if r.clock.timers[0].set {
		t.Error("its timer is set")
	}
	sent := r.wire.bytes[0]
	for r.clock.advance(r.clock.Now().Add(time.Second)) {
	}
	r.nic.background.running.Wait()
	if r.wire.bytes[0] != sent {
		t.Error("a destroyed queue sends")
	}
}
