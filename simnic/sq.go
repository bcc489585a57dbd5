package simnic

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/pacing"
)

// SQAttr describes a send queue.
type SQAttr struct {
	PD, TD     uint32 // protection and transport domain; TD 0: the queue sends no frames
	CQ         *CQ
	Ring       *Memory // 1<<LogSize basic blocks of 64 bytes
	LogSize    int
	Record     *Memory         // 8 bytes; the send counter is the second word
	UAR        uint32          // page whose doorbell registers serve this queue
	UserIndex  uint32          // echoed in completions, 24 bits
	StartIndex uint16          // counter to begin with after reset; 0 on silicon
	Timestamps TimestampFormat // of completions
	MPW        bool            // takes enhanced multi-packet WQEs
	LegacyMPW  bool            // takes legacy multi-packet WQEs
	UMR        bool            // takes WQEs that change memory keys
	Rate       uint64          // bits/s from reset on, until LimitRate changes it; 0: no limit
	Burst      int             // bytes at once, with Rate
	Netdev     bool            // frames count as the netdev's, not a user's
	Events     func(Event)
}

// SQ represents a send queue. The driver writes WQEs and then the doorbell; the NIC
// executes them on the goroutine that wrote it or, while frames have to wait for a
// receiver, on the queue's asynchronous sender (see doorbell).
//
//	        Modify          error completion, a lost CQ, Modify
//	RST ------------> RDY ----------------------------------> ERR
//	 ^                 |   WQEs are executed                   |  WQEs are flushed
//	 +-----------------+---------------------------------------+
//	      Modify: counters return to the start
//
// In RDY, WQEs wait while the rate of LimitRate allows no frame. All frames of a WQE leave at once;
// a card spaces those of a long one. A timer executes what waits.
//
// ERR with stopped set flushes nothing: the CQ failed, or more is posted than the ring holds. Only
// RST clears it.
type SQ struct {
	nic    *NIC
	attr   SQAttr
	number uint32
	use    refCount
	db     doorbell

	mu      sync.Mutex // held while WQEs are executed; taken before db.mu; covers what follows
	state   State
	hwCI    uint16 // next basic block to execute
	failed  bool   // an error was reported since reset
	stopped bool   // nothing is executed or flushed until reset
	burst   *burst
	rate    pacing.Schedule // of StateReady
	paced   bool            // WQEs wait for rate
	due     clock.Timer     // of their time; nil until the first wait
	waited  atomic.Bool     // a frame of the burst had to wait; the receiving side sets it
}

// frameOrigin identifies the frames of the queue.
func (sq *SQ) frameOrigin() frameOrigin {
	if sq.attr.Netdev {
		return frameOrigin{ownerNetdev, true, sq.attr.TD, &sq.waited}
	}
	return frameOrigin{ownerSlice, true, sq.attr.TD, &sq.waited}
}

// CreateSQ creates a send queue in the reset state.
func (n *NIC) CreateSQ(a SQAttr) (*SQ, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	if err := checkRing("send queue", a.Ring, a.Record, a.LogSize,
		n.caps.LogMaxQueue, 64); err != nil {
		return nil, err
	}
	if a.CQ == nil {
		return nil, statusErrorf(StatusBadParam, "send queue without completion queue")
	}
	if err := n.checkStamps(a.Timestamps); err != nil {
		return nil, err
	}
	if err := a.CQ.use.addUser(); err != nil {
		return nil, statusErrorf(StatusBadRes, "send queue on completion queue %#x", a.CQ.number)
	}
	sq := &SQ{nic: n, attr: a, db: doorbell{wake: make(chan struct{}, 1)}}
	sq.number = n.numbers.addObject(sq, 20)
	a.CQ.attachQueue(sq)
	return sq, nil
}

// Number returns the SQN, which for a queue of a raw packet QP is also the verbs QPN.
func (sq *SQ) Number() uint32 { return sq.number }

// Attr returns what the queue was created with.
func (sq *SQ) Attr() SQAttr { return sq.attr }

// State returns the device's state of the queue.
func (sq *SQ) State() State {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	return sq.state
}

// Modify moves the queue from state cur, which must be its real state, to next. In the reset state
// its counters return to the start; the driver zeroes the doorbell record.
func (sq *SQ) Modify(cur, next State) error {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if err := checkTransition("send queue", sq.number, sq.state, cur, next); err != nil {
		return err
	}
	if next == StateReset {
		sq.attr.CQ.ReleaseHeld()
	}
	if next != StateReady {
		sq.endPacing()
	}
	if next == StateReset || sq.state == StateReset {
		sq.hwCI, sq.failed, sq.stopped = sq.attr.StartIndex, false, false
		sq.db.resetDoorbell(next != StateReset, sq.hwCI)
	}
	if sq.state == StateReset && next == StateReady {
		sq.rate = pacing.NewSchedule(sq.attr.Rate, sq.attr.Burst)
	}
	sq.state = next
	if next == StateError && sq.runPosted() {
		sq.startSender()
	}
	return nil
}

// LimitRate makes the queue send bitsPerSecond at most, counted in bytes of frames without FCS, and
// burst bytes at once after a pause; 0 is no limit. The limit ends when the queue leaves
// StateReady. The device's range and number of rates are for the caller to check.
func (sq *SQ) LimitRate(bitsPerSecond uint64, burst int) error {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if sq.state != StateReady {
		return statusErrorf(StatusBadParam, "rate of send queue %#x, which is not ready",
			sq.number)
	}
	sq.endPacing()
	sq.rate = pacing.NewSchedule(bitsPerSecond, burst)
	if sq.runPosted() {
		sq.startSender()
	}
	return nil
}

// endPacing takes the limit away.
func (sq *SQ) endPacing() {
	sq.rate, sq.paced = pacing.Schedule{}, false
	if sq.due != nil {
		sq.due.Stop()
	}
}

// waitsForRate reports whether the rate allows no frame at now, after NIC.start. It then sets the
// timer.
func (sq *SQ) waitsForRate(now time.Duration) bool {
	d := sq.rate.Wait(now)
	if sq.paced = d > 0 && sq.state == StateReady; !sq.paced {
		return false
	}
	if sq.due == nil {
		n := sq.nic
		sq.due = n.clock.AfterFunc(d, func() { n.background.runBeside(sq.resumePaced) })
	} else {
		sq.due.Reset(d)
	}
	return true
}

// resumePaced executes what the rate allows by now.
func (sq *SQ) resumePaced() {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if !sq.paced {
		return
	}
	sq.rate.Resume(sq.nic.sinceStart())
	if sq.runPosted() {
		sq.startSender()
		sq.db.wakeUp() // it may run, and wait for a doorbell
	}
}

// Destroy removes the queue without executing the remaining WQEs. It waits for those in execution,
// as Modify does: up to 100 ms if a receiver has no buffers.
func (sq *SQ) Destroy() error {
	if err := sq.use.retireObject(); err != nil {
		return statusErrorf(StatusOf(err), "destroy send queue %#x", sq.number)
	}
	sq.mu.Lock()
	sq.state = StateReset
	sq.endPacing()
	sq.mu.Unlock()
	sq.db.endSender()
	sq.attr.CQ.detachQueue(sq)
	sq.attr.CQ.use.dropUser()
	sq.nic.numbers.removeNumber(sq.number)
	return nil
}

// failWQE completes a WQE with an error, even if it requested no completion, and puts the queue in
// error: all later WQEs are flushed.
func (sq *SQ) failWQE(w *wqe, f fault) {
	sq.queueCompletion(completion{op: w.op, index: sq.hwCI, failed: f})
	sq.state, sq.failed = StateError, true
	sq.hwCI += w.blocks
}

// flushWQE completes a WQE unexecuted. A WQE that requests a completion only for the first error of
// the queue gets none after that error.
func (sq *SQ) flushWQE(w *wqe) {
	if !sq.failed || w.ce != 1 {
		sq.queueCompletion(completion{op: w.op, index: sq.hwCI, failed: faultFlush})
	}
	sq.failed = true
	sq.hwCI += w.blocks
}

// stopSilently puts the queue in error without a completion; only a reset ends that state. Raises
// the queue's fatal event.
func (sq *SQ) stopSilently() {
	sq.state, sq.stopped = StateError, true
	if sq.attr.Events != nil {
		sq.attr.Events(Event{Type: EventSQFatal, SQ: sq})
	}
}

// cqFailed stops the queue because its CQ failed.
func (sq *SQ) cqFailed() {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if sq.state != StateReset {
		sq.stopSilently()
	}
}
