package dv

import "sync/atomic"

// alarm is how other goroutines tell the owner of a queue what happened. The
// owner looks at it once per batch.
type alarm struct {
	bits atomic.Uint32
}

const (
	alarmStopped = 1 << iota // the device is being closed
	alarmFailed              // the device failed for good
	alarmReset               // the queue is in error without having said so itself
)

// raise adds bits.
func (a *alarm) raise(bits uint32) { a.bits.Or(bits) }

// quiet is true when there is nothing to attend to.
func (a *alarm) quiet() bool { return a.bits.Load() == 0 }

// over is true when the queue must not be used any more.
func (a *alarm) over() bool { return a.bits.Load()&(alarmStopped|alarmFailed) != 0 }

// wantsReset reports whether a reset is due.
func (a *alarm) wantsReset() bool { return a.bits.Load()&alarmReset != 0 }

// clearReset forgets that a reset was due.
func (a *alarm) clearReset() { a.bits.And(^uint32(alarmReset)) }
