package simnic

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// MiniFormat says what a compressed completion keeps per packet
// (mini_cqe_res_format of the CQ context).
type MiniFormat uint8

// Mini CQE formats, in the numbers of the device.
const (
	MiniHash           MiniFormat = 0 // RSS hash, length
	MiniChecksum       MiniFormat = 1 // checksum, length
	MiniFlowTagStride  MiniFormat = 2 // flow tag, stride index, length
	MiniChecksumStride MiniFormat = 3 // checksum, stride index, length
	MiniL34Stride      MiniFormat = 4 // L3/L4 types, stride index, length
)

// CQAttr describes a completion queue.
type CQAttr struct {
	Ring       *Memory // 1<<LogSize entries
	LogSize    int
	EntrySize  int     // 64 (default) or 128 bytes
	Record     *Memory // 8 bytes: consumer index, arm word
	UAR        uint32  // page whose arm register serves this queue
	StartIndex uint32  // producer index to begin with; 0 on silicon

	IgnoreOverrun bool // overwrite entries the driver has not read
	Collapsed     bool // always write entry 0
	Compress      bool // receive completions come in blocks of mini CQEs
	MiniFormat    MiniFormat

	// Moderation: at most one event per MaxCount completions or PeriodUsec
	// microseconds, whichever comes first. Either 0: no moderation.
	MaxCount   uint16
	PeriodUsec uint16
	PeriodMode PeriodMode

	// Completion is called when an armed queue gets a completion, once per arming. It runs with the
	// queue's lock held and must not call the NIC.
	Completion func(*CQ)
	Events     func(Event) // EventCQError; same rule
}

// PeriodMode says what the period of moderation begins with (cq_period_mode of the CQ context).
type PeriodMode uint8

// Period modes, in the numbers of the device. Linux's mlx5_ib gives all of its queues the first.
const (
	// PeriodFromEvent begins with each event, so that the first completion after a pause is told
	// of at once.
	PeriodFromEvent PeriodMode = 0
	// PeriodFromCompletion begins anew with each completion.
	PeriodFromCompletion PeriodMode = 1
)

// CQStatus tells the health of a completion queue.
type CQStatus uint8

// Completion queue statuses, in the numbers of the CQ context.
const (
	CQOK         CQStatus = 0
	CQOverflow   CQStatus = 9
	CQWriteError CQStatus = 10
)

// CQ represents a completion queue. The NIC writes entries, the driver publishes in the
// record how far it has read.
type CQ struct {
	nic    *NIC
	attr   CQAttr
	number uint32
	use    refCount
	status atomic.Uint32
	common [mlx5.CQESize / 8]uint64 // of MiniFormat

	mu       sync.Mutex
	pi       uint32 // next entry to write, free-running; 24 bits are visible
	ci       uint32 // consumer index last read from the record
	arm      arming
	held     [][64]byte // completions that a fault holds back
	holding  bool
	attached []failer // queues that stop when this one fails
}

// failer stands for a queue that completes into a CQ.
type failer interface{ cqFailed() }

// CreateCQ creates a completion queue. The caller has written every entry's last byte so that none
// looks valid.
func (n *NIC) CreateCQ(a CQAttr) (*CQ, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	if a.EntrySize == 0 {
		a.EntrySize = 64
	}
	if a.EntrySize != 64 && a.EntrySize != 128 {
		return nil, statusErrorf(StatusBadParam, "completion queue entries of %d bytes",
			a.EntrySize)
	}
	if err := checkRing("completion queue", a.Ring, a.Record, a.LogSize, n.caps.LogMaxCQ,
		a.EntrySize); err != nil {
		return nil, err
	}
	if a.Compress && (!n.caps.Compression || n.caps.MiniFormats&(1<<a.MiniFormat) == 0) {
		return nil, statusErrorf(StatusBadParam, "completion queue with mini format %d",
			a.MiniFormat)
	}
	cq := &CQ{nic: n, attr: a, common: a.MiniFormat.commonMask(), pi: a.StartIndex,
		ci: a.StartIndex}
	cq.number = n.numbers.addObject(cq, 20)
	return cq, nil
}

// Number returns the CQN.
func (cq *CQ) Number() uint32 { return cq.number }

// Attr returns what the queue was created with, moderation as last modified.
func (cq *CQ) Attr() CQAttr {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.attr
}

// Status reports whether the queue still takes completions.
func (cq *CQ) Status() CQStatus { return CQStatus(cq.status.Load()) }

// Indices returns the next entry to write and the next one to read as far as the NIC knows,
// free-running in 24 bits.
func (cq *CQ) Indices() (producer, consumer uint32) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.readIndex()
	return cq.pi & indexMask, cq.ci & indexMask
}

// Moderate changes the moderation of events.
func (cq *CQ) Moderate(maxCount, periodUsec uint16) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.attr.MaxCount, cq.attr.PeriodUsec = maxCount, periodUsec
	return nil
}

// SetPeriodMode changes what the period of moderation begins with.
func (cq *CQ) SetPeriodMode(m PeriodMode) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.attr.PeriodMode = m
}

// Resize moves the queue to another ring. The driver's entries are not copied:
// the device writes a RESIZE_CQ completion into the old ring and continues at the
// same index in the new one, as linux mlx5_ib expects.
func (cq *CQ) Resize(ring *Memory, logSize int) error {
	if err := checkRing("completion queue", ring, cq.attr.Record, logSize, cq.nic.caps.LogMaxCQ,
		cq.attr.EntrySize); err != nil {
		return err
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	var e [64]byte
	e[63] = 5 << 4
	cq.writeEntry(&e)
	cq.attr.Ring, cq.attr.LogSize = ring, logSize
	return nil
}

// Destroy removes the queue. Queues that complete into it must be destroyed before: StatusResBusy.
func (cq *CQ) Destroy() error {
	if err := cq.use.retireObject(); err != nil {
		return statusErrorf(StatusOf(err), "destroy completion queue %#x", cq.number)
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.arm.stopTimer()
	cq.held = nil // the memory may be unmapped when they would be released
	cq.nic.numbers.removeNumber(cq.number)
	return nil
}

const indexMask = mlx5.RecordIndexMask

// putCompletion writes a completion: the 64 bytes without the owner bit, which it adds. It reports
// whether the queue took it.
func (cq *CQ) putCompletion(e *[64]byte) bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if h := cq.nic.hooks.Load(); h != nil && h.Complete != nil {
		lose, hold := h.Complete(cq)
		cq.holding = cq.holding || hold
		switch {
		case lose:
			return true
		case cq.holding:
			cq.held = append(cq.held, *e)
			return true
		}
	}
	if h := cq.nic.hooks.Load(); h != nil && h.Counter != nil && h.Counter(cq) {
		wrong := *e
		mlx5.CQEWQECounter.Put(wrong[:], uint64((*mlx5.CQE)(e).WQECounter()+wrongBy))
		e = &wrong
	}
	return cq.writeEntry(e) && cq.raiseIfDue()
}

// wrongBy says how far off a wrong wqe_counter is: less than any ring.
const wrongBy = 7

// ReleaseHeld writes the completions that a fault holds back, and ends the holding.
func (cq *CQ) ReleaseHeld() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	held := cq.held
	cq.held, cq.holding = nil, false
	for i := range held {
		if !cq.writeEntry(&held[i]) {
			return
		}
	}
	cq.raiseIfDue()
}

// writeEntry puts e into the next entry. Called with the lock held.
func (cq *CQ) writeEntry(e *[64]byte) bool {
	if cq.Status() != CQOK {
		return false
	}
	if !cq.hasRoom(1) {
		cq.fail(CQOverflow)
		return false
	}
	cq.storeEntry(cq.pi, e, cq.ownerBit(cq.pi))
	cq.pi++
	cq.nic.counters.addTo(ctrCQEs, 1)
	if e[63]&2 != 0 || (*mlx5.CQE)(e).Opcode().IsError() {
		cq.arm.solicited = cq.pi
	}
	return true
}

// ownerBit returns the owner bit of the entry with that index: 0 in the first pass.
func (cq *CQ) ownerBit(index uint32) byte { return byte(index >> cq.attr.LogSize & 1) }

// entryOffset returns the offset of the 64 bytes of an entry in the ring: the upper half of a
// larger entry.
func (cq *CQ) entryOffset(index uint32) uint64 {
	size := uint64(cq.attr.EntrySize)
	if cq.attr.Collapsed {
		return size - 64
	}
	return uint64(index&(1<<cq.attr.LogSize-1))*size + size - 64
}

// storeEntry writes an entry, the word with the owner bit last.
func (cq *CQ) storeEntry(index uint32, e *[64]byte, owner byte) {
	at := cq.entryOffset(index)
	cq.attr.Ring.Scatter(at, e[:mlx5.CQEOwnWord])
	last := binary.BigEndian.Uint32(e[mlx5.CQEOwnWord:])
	cq.attr.Ring.StoreBE32(at+mlx5.CQEOwnWord, last&^1|uint32(owner))
}

// hasRoom reports whether n entries are free. The driver's index is read only if there is no room
// by the last one read.
func (cq *CQ) hasRoom(n uint32) bool {
	size := uint32(1) << cq.attr.LogSize
	if n > size {
		return false
	}
	if cq.attr.IgnoreOverrun || cq.attr.Collapsed || cq.pi-cq.ci+n <= size {
		return true
	}
	cq.readIndex()
	return cq.pi-cq.ci+n <= size
}

// readIndex reads the consumer index from the record. One that went backwards is a violation and
// ignored. One outside of the ring is a violation, too, and the queue goes on as if all had been
// read: cards do, under VPP's rdma plugin, which writes the index of its receive queues in the byte
// order of the host.
func (cq *CQ) readIndex() {
	ci := cq.attr.Record.LoadBE32(mlx5.RecordConsumer) & indexMask
	forward := (ci - cq.ci) & indexMask
	if forward > cq.pi-cq.ci {
		cq.nic.strict.addViolation(
			"completion queue %#x: consumer index %#x is not between %#x and %#x",
			cq.number, ci, cq.ci&indexMask, cq.pi&indexMask)
		if behind := (cq.pi - ci) & indexMask; behind > 1<<cq.attr.LogSize {
			cq.ci = cq.pi
		}
		return
	}
	cq.ci += forward
}

// fail stops the queue and, as soon as their locks are free, the queues that
// complete into it. Called with the lock held.
func (cq *CQ) fail(s CQStatus) {
	if !cq.status.CompareAndSwap(uint32(CQOK), uint32(s)) {
		return
	}
	if s == CQOverflow {
		cq.nic.counters.addTo(ctrCQOverruns, 1)
	}
	if cq.attr.Events != nil {
		cq.attr.Events(Event{Type: EventCQError, CQ: cq})
	}
	users := append([]failer(nil), cq.attached...)
	cq.nic.background.runBeside(func() {
		for _, q := range users {
			q.cqFailed()
		}
	})
}

// Fail stops the queue as if its memory could not be written.
func (cq *CQ) Fail(s CQStatus) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.fail(s)
}

func (cq *CQ) attachQueue(q failer) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.attached = append(cq.attached, q)
}

func (cq *CQ) detachQueue(q failer) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	for i, o := range cq.attached {
		if o == q {
			cq.attached = append(cq.attached[:i], cq.attached[i+1:]...)
			return
		}
	}
}

// arming holds the state of the event that the driver of a completion queue requests. Guarded by
// the queue's lock.
type arming struct {
	on        bool
	only      bool        // solicited and error completions only
	ci        uint32      // completions from this index on raise the event
	events    uint32      // delivered so far; the driver's sn follows it
	solicited uint32      // index after the last solicited or error completion
	raised    time.Time   // when the last event was, if it was moderated
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
	if pause := cq.heldFor(waiting); pause > 0 {
		cq.startModeration(pause)
		return true
	}
	cq.raiseEvent()
	return true
}

// heldFor returns for how long moderation holds an event of so many completions; 0: not at all.
func (cq *CQ) heldFor(waiting uint32) time.Duration {
	if !cq.isModerated() || waiting >= uint32(cq.attr.MaxCount) {
		return 0
	}
	period := time.Duration(cq.attr.PeriodUsec) * time.Microsecond
	if cq.attr.PeriodMode == PeriodFromCompletion {
		return period
	}
	return max(0, period-cq.nic.clock.Since(cq.arm.raised))
}

func (cq *CQ) isModerated() bool { return cq.attr.MaxCount != 0 && cq.attr.PeriodUsec != 0 }

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
	if cq.isModerated() {
		cq.arm.raised = cq.nic.clock.Now()
	}
	cq.nic.counters.addTo(ctrCQEvents, 1)
	if cq.attr.Completion != nil {
		cq.attr.Completion(cq)
	}
}

// startModeration starts the moderation timer.
func (cq *CQ) startModeration(pause time.Duration) {
	if cq.arm.timer == nil {
		cq.arm.timer = cq.nic.clock.AfterFunc(pause, cq.raiseOverdue)
		return
	}
	cq.arm.timer.Reset(pause)
}

// raiseOverdue raises an event whose period has passed.
func (cq *CQ) raiseOverdue() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.arm.on && cq.eventThreshold() > 0 {
		cq.raiseEvent()
	}
}
