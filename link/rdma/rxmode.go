package rdma

import (
	"fmt"
	"runtime"
	"time"
)

// RxMode is how a receive worker waits for frames, by the names that VPP has for it ("set interface
// rx-mode").
type RxMode uint8

// The modes. The counters of a queue (dv.RxStats) show which is on: polling asks for no event
// (Arms), interrupt looks at the ring twice in vain per event asked for, adaptive looks more often.
const (
	// RxAdaptive looks at the ring for a while, the longer the more that pays, and then sleeps
	// until the NIC reports a frame.
	RxAdaptive RxMode = iota
	// RxPolling never sleeps and asks for no event: the shortest delay, for a whole processor per
	// receive queue. It needs more processors than receive queues: without, files and sockets of
	// the host are attended to every 10 ms only.
	RxPolling
	// RxInterrupt sleeps as soon as the ring is empty: the least work per second at low rates, for
	// a wake-up per batch.
	RxInterrupt
)

var rxModes = [...]string{RxAdaptive: "adaptive", RxPolling: "polling", RxInterrupt: "interrupt"}

// String implements fmt.Stringer.
func (m RxMode) String() string {
	if int(m) < len(rxModes) {
		return rxModes[m]
	}
	return fmt.Sprintf("RxMode(%d)", uint8(m))
}

// Validate says in one sentence what is wrong with m, or nil.
func (m RxMode) Validate() error {
	if int(m) >= len(rxModes) {
		return fmt.Errorf("there is no %s; use RxAdaptive, RxPolling or RxInterrupt", m)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (m RxMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: polling (or poll), adaptive, interrupt.
func (m *RxMode) UnmarshalText(text []byte) error {
	name := string(text)
	if name == "poll" {
		name = rxModes[RxPolling]
	}
	for i, s := range rxModes {
		if s == name {
			*m = RxMode(i)
			return nil
		}
	}
	return fmt.Errorf("want polling, adaptive or interrupt")
}

const (
	maxSpins = 2000
	minSpins = 16

	// A yield found nobody else to run, or only other workers that look in vain, if it took less
	// than what idleLimit says, or on a slow machine not much more than the shortest one so far,
	// but no more than longestIdleYield. After idleYields of them in a row the worker parks.
	idleYield        = time.Microsecond
	longestIdleYield = 20 * time.Microsecond
	idleYields       = 2

	// pollsPerYield is how often a worker that never sleeps looks before it lets others run.
	pollsPerYield = 64
)

// run works until the attachment or the device ends, or the queue is replaced.
func (w *worker) run() {
	defer w.chunks.release()
	defer w.count.waiting.release()
	mode := w.e.opts.RxMode
	if w.e.opts.Clock.Virtual() || w.kind != w.group.queues.kind() {
		mode = RxInterrupt // time stands still while others spin; sockets beside rings have little
	}
	switch mode {
	case RxPolling:
		w.runPolling()
	case RxInterrupt:
		w.runParking(func() bool { return false })
	default:
		w.runParking(func() bool { return w.spin() || w.linger() })
	}
	w.deliverRest()
}

// runParking sleeps when there is nothing and look, too, finds nothing.
func (w *worker) runParking(look func() bool) {
	for !w.ending() {
		r := region(regionPoll)
		found := w.poll() || look()
		endRegion(r)
		if found {
			continue
		}
		w.q.Arm()
		if w.poll() {
			continue
		}
		w.count.waiting.collect()
		if w.q.Wait() != nil {
			return
		}
	}
}

// runPolling does not sleep.
func (w *worker) runPolling() {
	for !w.ending() {
		r, found := region(regionPoll), false
		for range pollsPerYield {
			found = w.poll() || found
		}
		endRegion(r)
		if found {
			continue
		}
		select {
		case <-w.group.queues.Done():
			return
		default:
			runtime.Gosched()
		}
	}
}

// spin looks again and again, adapting to whether it pays.
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

// linger lets other goroutines run, looking at the ring after each turn of theirs, for as long as
// there are any, and reports whether something came. A worker that parks while the processors are
// busy is not woken by its event: the scheduler asks the netpoller only when it has nothing else to
// run, or after 10 ms, by when a ring has long overrun. Goroutines about to send get their turn,
// too, so the batch will be larger.
func (w *worker) linger() bool {
	for idle := 0; idle < idleYields && !w.ending(); {
		before := w.e.opts.Clock.Now()
		runtime.Gosched()
		if w.poll() {
			return true
		}
		if w.idleYield(w.e.opts.Clock.Since(before)) {
			idle++
		} else {
			idle = 0
		}
	}
	return false
}

// idleLimit is how long a yield takes at most that runs nothing but other workers, each of which
// finds nothing: idleYield for each that may be on this processor, and as much again, for they are
// not spread evenly. A limit without regard to them has workers take each other for work that is to
// be done, none of them parks, and each yield wakes another processor.
func idleLimit(queues, processors int) time.Duration {
	return max(idleYield, 2*idleYield*time.Duration(queues)/time.Duration(processors))
}

// idleYield reports whether a yield that took so long found nothing to run.
func (w *worker) idleYield(took time.Duration) bool {
	if w.shortest == 0 || took < w.shortest {
		w.shortest = max(took, 1)
	}
	return took < max(w.idle, min(2*w.shortest, longestIdleYield))
}
