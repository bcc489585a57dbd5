package dv

import (
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// ownerSignals is how other goroutines tell the owner of a queue what happened. The
// owner looks at it once per batch.
type ownerSignals struct {
	bits atomic.Uint32
}

const (
	signalStopped = 1 << iota // the device is being closed
	signalFailed              // the device failed for good
	signalReset               // the queue is to be reset without having said so itself
	signalInError             // the NIC says that the queue is in its error state
	signalDump                // of a receive queue: somebody waits for a Dump
)

// raiseBits adds bits.
func (a *ownerSignals) raiseBits(bits uint32) { a.bits.Or(bits) }

// isClear reports whether there is no signal.
func (a *ownerSignals) isClear() bool { return a.bits.Load() == 0 }

// isStopped reports whether the queue must not be used any more.
func (a *ownerSignals) isStopped() bool { return a.bits.Load()&(signalStopped|signalFailed) != 0 }

// wantsReset reports whether a reset is due.
func (a *ownerSignals) wantsReset() bool { return a.bits.Load()&signalReset != 0 }

// clearDump forgets that a dump was asked for, and reports whether it was.
func (a *ownerSignals) clearDump() bool {
	return a.bits.Load()&signalDump != 0 && a.bits.And(^uint32(signalDump))&signalDump != 0
}

// clearReset forgets that a reset was due, and reports whether the NIC had said that the queue is
// in its error state.
func (a *ownerSignals) clearReset() (inError bool) {
	return a.bits.And(^uint32(signalReset|signalInError))&signalInError != 0
}

// queueControl holds what a queue needs from its device: the kernel's part of it, and
// somebody to tell when it is over.
type queueControl struct {
	// halt makes the NIC let go of the ring: afterwards it reads and writes
	// none of the queue's memory. start gives it the ring, rewound, anew.
	halt, start func() error
	// haltFailed is halt for a receive queue that is in its error state. It reports whether it is.
	haltFailed func() (bool, error)
	// fail ends the device.
	fail func(error)
	// wakeAfter has a receive queue's owner look at it again after a while. A call replaces the
	// last one for the same reason.
	wakeAfter func(wakeReason, time.Duration)
	// linkUp reports whether the port has a link: without one a NIC may send nothing.
	linkUp func() bool
	// ended says why the queue must not be used any more.
	ended func() error
	// clock returns the device's clock.
	clock func() (Clock, bool)
	// dumped is Config.Dumped.
	dumped func(Dump)
}

// wakeReason says what the owner of a receive queue is woken for.
type wakeReason uint8

const (
	wakeToReset  wakeReason = iota // a reset was put off
	wakeToReport                   // a line of log was put off
	wakeReasons
)

// wakeTimers wake the owner of a receive queue later, by one timer for each reason. They are the
// owner's, and those of who destroys the queue once the owner has ended.
type wakeTimers struct {
	clock  clock.Clock
	wake   func()
	timers [wakeReasons]clock.Timer // nil: not needed yet
}

// wakeAfter calls wake once pause has passed. An earlier call for the same reason is forgotten.
func (w *wakeTimers) wakeAfter(why wakeReason, pause time.Duration) {
	if t := w.timers[why]; t != nil {
		t.Reset(pause)
		return
	}
	w.timers[why] = w.clock.AfterFunc(pause, w.wake)
}

// stopAll stops all timers.
func (w *wakeTimers) stopAll() {
	for _, t := range w.timers {
		if t != nil {
			t.Stop()
		}
	}
}
