//go:build linux

package vm

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// heldClock shows the system's time until it is held, and from then on what a test makes of it.
// The guest's clock is another.
type heldClock struct {
	virtual *clocktest.Clock
	began   time.Time                 // of virtual
	held    atomic.Pointer[time.Time] // the system's time then; nil before
}

func newHeldClock() *heldClock {
	c := clocktest.New()
	return &heldClock{virtual: c, began: c.Now()}
}

// hold stops time, which goes on by Advance of virtual only.
func (c *heldClock) hold() { c.held.CompareAndSwap(nil, new(time.Now())) }

// Now implements clock.Source.
func (c *heldClock) Now() time.Time {
	if at := c.held.Load(); at != nil {
		return at.Add(c.virtual.Now().Sub(c.began))
	}
	return time.Now()
}

// AfterFunc implements clock.Source. A timer made before time was held goes by the system's.
func (c *heldClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	if c.held.Load() != nil {
		return c.virtual.AfterFunc(d, f)
	}
	return time.AfterFunc(d, f)
}

// TestUserRates gives a send queue of package dv rates, by the verbs of one kernel: by the NIC's
// clock, which the test advances, each frame leaves at its time, within 2 % and that of a frame. It
// is not a part of make test.
func TestUserRates(t *testing.T) {
	p, version := gatherForUsers(t, "one minute")
	c := newHeldClock()
	w := boot(t, t.Context(), p, version, simnic.Config{Clock: clock.New(c)},
		pcie.Config{Pacing: true})
	t.Run("probe", func(t *testing.T) { testProbe(t, w) })
	c.hold()
	for _, rate := range []uint64{1e6, 8e6, 1e9, 1e10} {
		t.Run(fmt.Sprintf("%d kbit", rate/1000), func(t *testing.T) {
			w.keepsRate(t, c, rate)
			w.noComplaints(t)
			w.cleanLog(t)
		})
	}
}

// sendLog hooks into a NIC and keeps the time of each frame that a program's queue sends.
type sendLog struct {
	clock *heldClock
	mu    sync.Mutex
	sent  []time.Time   // guarded by mu
	queue *simnic.SQ    // of the latest; guarded by mu
	more  chan struct{} // gets one, if it has none, with each frame
}

func (l *sendLog) add(sq *simnic.SQ, _ uint16) (syndrome, vendor uint8) {
	if !sq.Attr().Netdev {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sent, l.queue = append(l.sent, l.clock.Now()), sq
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
	return 0, 0
}

// times returns when frames left, once the queue waits for the time of the next or has no more.
func (l *sendLog) times() []time.Time {
	l.mu.Lock()
	sent, sq := l.sent, l.queue
	l.mu.Unlock()
	if sq != nil {
		sq.State() // waits for the queue's lock, which is held while it sends
	}
	return sent
}

// passUntil goes on from timer to timer until n frames have left. The queue sets the timer of a
// frame when it has sent the one before. Other timers, those of completion queues, lead to no
// frame: they are few, and are waited for for a moment only.
func (c *heldClock) passUntil(t *testing.T, l *sendLog, n int) {
	t.Helper()
	const moment = 100 * time.Millisecond
	for deadline := time.Now().Add(patience); len(l.times()) < n; {
		select {
		case <-l.more: // of a frame before
		default:
		}
		c.virtual.Step()
		select {
		case <-l.more:
		case <-time.After(moment):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d frames left, want %d", len(l.times()), n)
		}
	}
}

// keepsRate makes the guest send frames of 1000 bytes through a queue of so many bit/s, and
// looks at the NIC's time of each.
func (w *world) keepsRate(t *testing.T, c *heldClock, rate uint64) {
	t.Helper()
	const frames = 300
	each := time.Duration(8000 * uint64(time.Second) / rate)
	log := &sendLog{clock: c, more: make(chan struct{}, 1)}
	w.nic.SetHooks(&simnic.Hooks{SendWQE: log.add})
	defer w.nic.SetHooks(nil)
	job := w.start(t, "/init", "pace", "-mac", sliceMAC, "-rate", fmt.Sprint(rate), "-frames",
		fmt.Sprint(frames))
	w.eventually(t, func() string { return "frames posted: " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), "posted") })
	for n := range frames {
		c.passUntil(t, log, n+1)
	}
	r, err := w.vm.Do(rig.Request{Op: "wait", Job: job, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("the guest's program ended with %d, %v: %s", r.Code, err, r.Output)
	}
	sent, worst := log.times(), time.Duration(0)
	for i, at := range sent[1:] {
		took, want := at.Sub(sent[0]), time.Duration(i+1)*each
		off := (took - want).Abs()
		worst = max(worst, off)
		if off > want/50+each {
			t.Fatalf("frame %d left %v behind the first, want %v", i+1, took, want)
		}
	}
	t.Logf("%d frames in %v, want %v; each within %v of its time", len(sent),
		sent[len(sent)-1].Sub(sent[0]), (frames-1)*each, worst)
}
