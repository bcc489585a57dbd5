package simnic

import (
	"encoding/binary"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// maxBurst says how many frames, or completions, a send queue collects before it hands them on.
const maxBurst = 64

// arenaSize gives the size of the memory in which a send queue assembles the frames of a burst:
// two of the longest.
const arenaSize = 2 * 65536

// burst holds the frames and completions that a send queue has executed and not handed on. Guarded
// by the queue's lock.
type burst struct {
	arena  []byte
	used   int
	frames []frame.Frame
	done   []completion
	raw    [1024]byte // the WQE being executed
	wqe    wqe        // its control segment
	now    uint64     // time stamp of the burst's completions
	mem    keyHold

	wqes, lso, checksums int // not counted yet
}

// completion describes a WQE that requested a CQE.
type completion struct {
	op     mlx5.Opcode
	index  uint16
	se     uint8
	failed fault
}

// Doorbell tells the queue that its record was advanced: it executes all new WQEs before it
// returns, unless frames have to wait. v is the register value, the first 8 bytes of the last WQE.
// Safe for concurrent use, though a driver rings one queue from one place.
func (sq *SQ) Doorbell(v uint64) { sq.onDoorbell(v, (*SQ).checkDoorbell) }

// onDoorbell executes the new WQEs, after check, or leaves them to the asynchronous sender.
func (sq *SQ) onDoorbell(v uint64, check func(*SQ, uint64) uint16) {
	if h := sq.nic.hooks.Load(); h != nil && h.Doorbell != nil && h.Doorbell(sq) {
		sq.loseDoorbell(v, check)
		return
	}
	sq.nic.counters.addTo(ctrDoorbells, 1)
	if sq.takeDoorbell(v, check) {
		return
	}
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if sq.runPosted() {
		sq.startSender()
	}
}

// checkDoorbell records violations that hardware accepts but a correct driver does not make. The
// register value must be that of the last WQE posted: a convention of all drivers. The doorbell
// announces the producer index of the record.
func (sq *SQ) checkDoorbell(v uint64) (announced uint16) {
	pi := sq.postedRecord()
	index, ds := uint16(v>>40), int(v&0x3f)
	if sqn := uint32(v) >> 8; sqn != sq.number {
		sq.violation("doorbell %#016x names queue %#x", v, sqn)
		return pi
	}
	if index+uint16(mlx5.BBs(ds)) != pi {
		sq.violation("doorbell %#016x: WQE %#x of %d DS does not end at the record's counter %#x",
			v, index, ds, pi)
		return pi
	}
	sq.checkRung(v, index)
	return pi
}

// postedRecord returns the number of basic blocks that the driver has posted, from the doorbell
// record.
func (sq *SQ) postedRecord() uint16 { return uint16(sq.attr.Record.LoadBE32(mlx5.RecordSend)) }

// checkRung compares a doorbell with the WQE it is a copy of.
func (sq *SQ) checkRung(v uint64, index uint16) {
	var ring [8]byte
	sq.attr.Ring.Gather(sq.ringOffset(index), ring[:])
	if got := binary.BigEndian.Uint64(ring[:]); got != v {
		sq.violation("doorbell %#016x: the ring has %#016x at %#x", v, got, index)
	}
}

func (sq *SQ) violation(format string, args ...any) {
	sq.nic.strict.addViolation("send queue %#x: "+format, append([]any{sq.number}, args...)...)
}

// ringOffset returns the offset in the ring of the basic block with that index.
func (sq *SQ) ringOffset(index uint16) uint64 {
	return uint64(index) & (1<<sq.attr.LogSize - 1) * mlx5.BB
}

// runPosted executes the WQEs that doorbells have announced, or in the error state flushes those
// posted according to the record. It stops when a frame had to wait, and reports that. Called with
// the lock held.
func (sq *SQ) runPosted() (waited bool) {
	if sq.state == StateReset || sq.stopped || sq.nic.fatal.Load() || sq.nic.closed.Load() ||
		sq.isHeld() {
		return false
	}
	pi := sq.postedRecord()
	if posted := pi - sq.hwCI; int(posted) > 1<<sq.attr.LogSize {
		sq.violation("%d basic blocks posted in a ring of %d", posted, 1<<sq.attr.LogSize)
		sq.stopSilently()
		return false
	}
	if sq.state == StateReady {
		pi = sq.announced()
	}
	if sq.waited.Load() { // of the run before
		sq.waited.Store(false)
	}
	now := sq.nic.sinceStart()
	sq.prepareBurst(now)
	if !sq.paced {
		sq.rate.Begin(now)
	}
	sq.paced = false
	for sq.hwCI != pi && !sq.stopped && !sq.waited.Load() && !sq.waitsForRate(now) {
		sq.stepWQE(pi - sq.hwCI)
	}
	sq.handOn()
	return sq.waited.Load()
}

// isHeld reports whether a fault stops the queue. In error the queue flushes anyway. A queue that
// sends no frames never waits for the wire.
func (sq *SQ) isHeld() bool {
	h := sq.nic.hooks.Load()
	return h != nil && h.Hold != nil && sq.state == StateReady && sq.attr.TD != 0 && h.Hold(sq)
}

// prepareBurst prepares the burst of a run at now, after NIC.start; the first call allocates it.
func (sq *SQ) prepareBurst(now time.Duration) {
	if sq.burst == nil {
		sq.burst = &burst{
			arena:  make([]byte, arenaSize),
			frames: make([]frame.Frame, 0, maxBurst),
			done:   make([]completion, 0, maxBurst),
		}
	}
	sq.burst.now = sq.nic.stampAt(sq.attr.Timestamps, now)
}

// stepWQE takes the WQE at hwCI, of which at most avail blocks are posted.
func (sq *SQ) stepWQE(avail uint16) {
	w := &sq.burst.wqe
	f := sq.fetchWQE(w, avail)
	if sq.state == StateError {
		sq.flushWQE(w)
		return
	}
	if f.syndrome == 0 {
		f = sq.injectFault(w)
	}
	if f.syndrome == 0 {
		f = sq.executeWQE(w)
	}
	sq.burst.wqes++
	if f.syndrome != 0 {
		sq.failWQE(w, f)
		return
	}
	if w.ce >= 2 {
		sq.queueCompletion(completion{op: w.op, index: sq.hwCI, se: w.se})
	}
	sq.hwCI += w.blocks
}

// injectFault reports whether a fault makes this WQE fail.
func (sq *SQ) injectFault(w *wqe) fault {
	if h := sq.nic.hooks.Load(); h != nil && h.SendWQE != nil {
		syndrome, vendor := h.SendWQE(sq, w.index)
		return fault{mlx5.Syndrome(syndrome), vendor, 0}
	}
	return fault{}
}

// fetchWQE copies the WQE at hwCI and checks its control segment.
func (sq *SQ) fetchWQE(w *wqe, avail uint16) fault {
	buf := sq.burst.raw[:]
	at := sq.ringOffset(sq.hwCI)
	sq.attr.Ring.Gather(at, buf[:mlx5.BB])
	w.decodeControl(buf)
	w.raw = buf[:min(max(w.ds, 1)*mlx5.DSSize, len(buf))]
	over := w.blocks > avail || w.ds*mlx5.DSSize > sq.nic.caps.MaxSendWQE
	if over {
		w.blocks = min(w.blocks, avail)
	}
	switch {
	case w.index != sq.hwCI:
		sq.violation("WQE %#x says it is %#x", sq.hwCI, w.index)
		return faultFormat
	case w.sqn != sq.number:
		sq.violation("WQE %#x names queue %#x", sq.hwCI, w.sqn)
		return faultFormat
	case !sq.knowsOpcode(w):
		return faultOpcode
	case w.ds < 1 || w.op != mlx5.OpNOP && w.ds < 3, over:
		return faultSize
	}
	if w.raw[7]&0xc0|w.raw[9]|w.raw[10] != 0 {
		sq.violation("WQE %#x has reserved bits set in its control segment", sq.hwCI)
	}
	sq.fetchRest(w)
	return fault{}
}

// fetchRest copies the blocks after the first, across the end of the ring.
func (sq *SQ) fetchRest(w *wqe) {
	for b := uint16(1); b < w.blocks; b++ {
		at := int(b) * mlx5.BB
		sq.attr.Ring.Gather(sq.ringOffset(sq.hwCI+b), sq.burst.raw[at:at+mlx5.BB])
	}
}

// knowsOpcode reports whether a raw Ethernet queue supports the operation.
func (sq *SQ) knowsOpcode(w *wqe) bool {
	switch w.op {
	case mlx5.OpNOP, mlx5.OpSend, mlx5.OpEnhancedMPW:
		return true
	case mlx5.OpLSO:
		return w.opmod != mlx5.OpModLegacyMPW || sq.nic.caps.LegacyMPW && sq.attr.LegacyMPW
	case mlx5.OpUMR:
		return sq.attr.UMR
	}
	return false
}

// queueCompletion queues a completion, in order with the frames before it.
func (sq *SQ) queueCompletion(c completion) {
	if len(sq.burst.done) == maxBurst {
		sq.handOn()
	}
	sq.burst.done = append(sq.burst.done, c)
}

// handOn forwards the frames collected and then writes the completions, so that
// a completed frame has left.
func (sq *SQ) handOn() {
	b := sq.burst
	b.mem.releaseKey()
	b.addCounts(&sq.nic.counters)
	if len(b.frames) > 0 {
		sq.nic.forwardFrames(sq.frameOrigin(), b.frames, true)
	}
	b.frames, b.used = b.frames[:0], 0
	for _, c := range b.done {
		if !sq.writeCompletion(c) {
			sq.state, sq.stopped = StateError, true
			break
		}
	}
	b.done = b.done[:0]
}

// addCounts adds the executed WQEs to the NIC's counters.
func (b *burst) addCounts(c *counters) {
	if b.wqes > 0 {
		c.addTo(ctrSendWQEs, b.wqes)
	}
	if b.lso > 0 {
		c.addTo(ctrLSOWQEs, b.lso)
	}
	if b.checksums > 0 {
		c.addTo(ctrChecksumWQEs, b.checksums)
	}
	b.wqes, b.lso, b.checksums = 0, 0, 0
}

func (sq *SQ) writeCompletion(c completion) bool {
	var e [mlx5.CQESize]byte
	if sq.nic.cfg.RingIndex {
		c.index &= 1<<sq.attr.LogSize - 1
	}
	if c.failed.syndrome == 0 {
		cqe := mlx5.TxCQE{UIdx: sq.attr.UserIndex, Timestamp: sq.burst.now, Opcode: c.op,
			SQN: sq.number, Counter: c.index,
			OpOwn: mlx5.OpOwn(mlx5.CQEReq, 0, c.se, 0)}
		cqe.Put(e[:])
		return sq.attr.CQ.putCompletion(&e)
	}
	cqe := mlx5.ErrorCQE{UIdx: sq.attr.UserIndex, HWSyndrome: c.failed.hw, Vendor: c.failed.vendor,
		Syndrome: c.failed.syndrome,
		Opcode:   c.op, QPN: sq.number, Counter: c.index,
		OpOwn: mlx5.OpOwn(mlx5.CQEReqErr, 0, 1, 0)}
	cqe.Put(e[:])
	mlx5.SignCQE(&e)
	sq.nic.countError(c.failed, ctrReqErrors, ctrReqFlushed)
	return sq.attr.CQ.putCompletion(&e)
}
