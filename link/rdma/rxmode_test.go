package rdma

import (
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

// atRest returns the counters of a queue once they have stopped changing.
func atRest(t *testing.T, q *dv.RxQueue) dv.RxStats {
	t.Helper()
	last, still := dv.RxStats{}, -1
	for deadline := time.Now().Add(30 * time.Second); still < 20; still++ {
		if time.Now().After(deadline) {
			t.Fatalf("the worker does not rest: %+v", last)
		}
		time.Sleep(2 * time.Millisecond) // time passes; nothing waits for this
		now := q.Stats()
		now.AsleepNanos = 0
		if now != last {
			last, still = now, -1
		}
	}
	return last
}

// oneByOne delivers n frames, each after the previous one has arrived and pause has passed.
func oneByOne(t *testing.T, e *Endpoint, from *dv.TxQueue, n int, pause time.Duration) {
	t.Helper()
	s := newSink()
	e.Attach(s)
	for i := range n {
		post(t, from, arpFrame())
		s.await(t, i+1)
		time.Sleep(pause)
	}
}

// TestRxModes determines the mode from the counters of the queue.
func TestRxModes(t *testing.T) {
	const frames = 50
	open := func(t *testing.T, mode RxMode) (*Endpoint, *dv.RxQueue, *dv.TxQueue) {
		_, devs := devices(t, setup{})
		e, err := New(devs[0], Options{RxMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e, devs[0].Rx(0), devs[1].Tx(0)
	}
	t.Run("adaptive", func(t *testing.T) {
		e, q, peer := open(t, RxAdaptive)
		oneByOne(t, e, peer, frames, 0)
		if s := atRest(t, q); s.Arms == 0 || s.Polls-s.Hits <= 2*s.Arms {
			t.Errorf("%+v: want events asked for, and more than two looks before each", s)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		e, q, peer := open(t, RxInterrupt)
		oneByOne(t, e, peer, frames, 0)
		s := atRest(t, q)
		if s.Arms == 0 || s.Polls-s.Hits > 2*s.Arms || s.Events > s.Arms {
			t.Errorf("%+v: want events asked for, and two looks in vain before each", s)
		}
		for deadline := time.Now().Add(30 * time.Second); q.Stats().Events == s.Events; time.Sleep(
			time.Millisecond) {
			post(t, peer, arpFrame())
			if time.Now().After(deadline) {
				t.Fatalf("%+v: no event for frames to a worker that sleeps", q.Stats())
			}
		}
	})
	t.Run("polling", func(t *testing.T) {
		e, q, peer := open(t, RxPolling)
		oneByOne(t, e, peer, 10, 2*time.Millisecond) // enough for another mode to go to sleep
		if s := q.Stats(); s.Arms != 0 || s.Events != 0 || s.Wakes != 0 || s.Polls < s.Hits {
			t.Errorf("%+v: want no event asked for", s)
		}
		e.Close() // which waits for the worker
	})
}

// TestVirtualTimeDoesNotSpin: where time stands still, every mode sleeps as soon as the ring is
// empty.
func TestVirtualTimeDoesNotSpin(t *testing.T) {
	for _, mode := range []RxMode{RxAdaptive, RxPolling, RxInterrupt} {
		t.Run(mode.String(), func(t *testing.T) {
			_, devs := devices(t, setup{})
			e, err := New(devs[0], Options{RxMode: mode, Clock: clocktest.New().Clock()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			oneByOne(t, e, devs[1].Tx(0), 10, 0)
			if s := atRest(t, devs[0].Rx(0)); s.Arms == 0 || s.Polls-s.Hits > 2*s.Arms {
				t.Errorf("%+v: want events asked for, and two looks in vain before each", s)
			}
		})
	}
}

// TestPollingEndsWithTheDevice: a worker that never sleeps detects the end of the device by itself.
func TestPollingEndsWithTheDevice(t *testing.T) {
	_, devs := devices(t, setup{})
	e, err := New(devs[0], Options{RxMode: RxPolling})
	if err != nil {
		t.Fatal(err)
	}
	e.Attach(newSink())
	devs[0].Stop()
	e.workers.running.Wait()
	e.Close()
}

func TestRxModeNames(t *testing.T) {
	for _, tt := range []struct {
		text string
		want RxMode
		name string
	}{
		{"adaptive", RxAdaptive, "adaptive"}, {"polling", RxPolling, "polling"},
		{"poll", RxPolling, "polling"}, {"interrupt", RxInterrupt, "interrupt"},
	} {
		m := RxMode(99)
		if err := m.UnmarshalText([]byte(tt.text)); err != nil ||
			m != tt.want || m.String() != tt.name {
			t.Errorf("%s: %v, %v", tt.text, m, err)
		}
	}
	var m RxMode
	if err := m.UnmarshalText([]byte("Polling")); err == nil ||
		err.Error() != "want polling, adaptive or interrupt" {
		t.Errorf("%v", err)
	}
	_, dev := openDevice(t, 1, setup{})
	if _, err := New(dev, Options{RxMode: 3}); err == nil ||
		!strings.Contains(err.Error(), "there is no RxMode(3)") {
		t.Errorf("a mode that is none: %v", err)
	}
}

// TestRxModesCarryData runs TCP both ways over each mode.
func TestRxModesCarryData(t *testing.T) {
	for _, mode := range []RxMode{RxPolling, RxInterrupt} {
		t.Run(mode.String(), func(t *testing.T) {
			a, b := pair(t, setup{opts: Options{RxMode: mode},
				dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
			go echo(a.listen(t, a.v4, 80))
			if err := exchange(b.dial(t, a.v4, 80), data(1<<20, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestIdleYield: on a slow machine an idle yield takes longer, and the worker parks all the same; a
// yield that lets other goroutines run does not count, unless these are workers that find nothing.
func TestIdleYield(t *testing.T) {
	us := time.Microsecond
	for _, tt := range []struct {
		name               string
		queues, processors int
		yield              []time.Duration
		want               bool // of the last
	}{
		{"fast machine, nobody", 1, 2, []time.Duration{300, 400}, true},
		{"fast machine, somebody", 1, 2, []time.Duration{300, 5 * us}, false},
		{"slow machine, nobody", 1, 2, []time.Duration{6 * us, 7 * us}, true},
		{"slow machine, somebody", 1, 2, []time.Duration{6 * us, 13 * us}, false},
		{"always somebody", 1, 2, []time.Duration{500 * us, 400 * us}, false},
		{"first of all", 1, 2, []time.Duration{5 * us}, true},
		{"clock stands still", 1, 2, []time.Duration{0, 0}, true},
		{"three other workers", 4, 2, []time.Duration{300, 3 * us}, true},
		{"seven other workers", 8, 1, []time.Duration{300, 12 * us}, true},
		{"other workers and somebody", 4, 2, []time.Duration{300, 9 * us}, false},
		{"a processor for each worker, somebody", 16, 64, []time.Duration{300, 3 * us}, false},
	} {
		w, got := &worker{idle: idleLimit(tt.queues, tt.processors)}, false
		for _, d := range tt.yield {
			got = w.idleYield(d)
		}
		if got != tt.want {
			t.Errorf("%s: idle %v", tt.name, got)
		}
	}
}
