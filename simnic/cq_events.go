package simnic

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// arming holds the state of the event that the driver of a completion queue requests. Guarded by
// the queue's lock.
type arming struct {
	on        bool
	only      bool        // solicited and error completions only
	ci        uint32      // completions from this index on raise the event
	events    uint32      // delivered so far; the driver's sn follows it
	solicited uint32      // index after the last solicited or error completion
	timer     clock.Timer // nil: not needed yet
	gone      bool
}

func (a *arming) stopTimer() {
	a.gone, a.on = true, false
	if a.timer != nil {
		a.timer.Stop()
	}
}

// ArmWord takes the driver's request for an event: w as in mlx5.ArmWord, which
// the driver has also put into the record. If there is already a completion that the driver has not
// consumed, the event is raised at once. A request with the number of an event already delivered is
// stale: that event wakes the driver.
func (cq *CQ) ArmWord(w uint32) {
	if got := cq.attr.Record.LoadBE32(mlx5.RecordArm); got != w {
		cq.nic.strict.addViolation("completion queue %#x: armed with %#08x, the record has %#08x",
			cq.number,
			w, got)
	}
	cq.recordArming(w)
}

func (cq *CQ) recordArming(w uint32) {
	sn, only, ci := mlx5.ParseArmWord(w)
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.arm.gone || sn != cq.arm.events&3 {
		cq.countStaleArming(sn)
		return
	}
	behind := (cq.pi - ci) & indexMask
	if behind > 1<<cq.attr.LogSize && !cq.attr.IgnoreOverrun && !cq.attr.Collapsed {
		cq.nic.strict.addViolation("completion queue %#x: armed at index %#x, producer is at %#x",
			cq.number, ci, cq.pi&indexMask)
		behind = 0
	}
	cq.arm.on, cq.arm.only, cq.arm.ci = true, only, cq.pi-behind
	cq.raiseIfDue()
}

// countStaleArming counts a request that is late by one event, and records a violation for any
// other.
func (cq *CQ) countStaleArming(sn uint32) {
	cq.nic.counters.addTo(ctrStaleArms, 1)
	if (sn+1)&3 != cq.arm.events&3 {
		cq.nic.strict.addViolation("completion queue %#x: armed with sn %d after %d events",
			cq.number, sn, cq.arm.events)
	}
}

// raiseIfDue raises the event if one is requested and due. Called with the lock held; always true.
func (cq *CQ) raiseIfDue() bool {
	waiting := cq.eventThreshold()
	if !cq.arm.on || waiting == 0 {
		return true
	}
	if cq.attr.MaxCount != 0 && cq.attr.PeriodUsec != 0 && waiting < uint32(cq.attr.MaxCount) {
		cq.startModeration()
		return true
	}
	cq.raiseEvent()
	return true
}

// eventThreshold returns how many completions after the armed index raise the event.
func (cq *CQ) eventThreshold() uint32 {
	if !cq.arm.only {
		return cq.pi - cq.arm.ci
	}
	return uint32(max(0, int32(cq.arm.solicited-cq.arm.ci)))
}

func (cq *CQ) raiseEvent() {
	cq.arm.on = false
	cq.arm.events++
	cq.nic.counters.addTo(ctrCQEvents, 1)
	if cq.attr.Completion != nil {
		cq.attr.Completion(cq)
	}
}

// startModeration starts the moderation timer.
func (cq *CQ) startModeration() {
	period := time.Duration(cq.attr.PeriodUsec) * time.Microsecond
	if cq.arm.timer == nil {
		cq.arm.timer = cq.nic.clock.AfterFunc(period, cq.raiseOverdue)
		return
	}
	cq.arm.timer.Reset(period)
}

// raiseOverdue raises an event whose period has passed.
func (cq *CQ) raiseOverdue() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.arm.on && cq.eventThreshold() > 0 {
		cq.raiseEvent()
	}
}
