package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

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

// readIndex reads the consumer index from the record. If it went backwards or ahead of the
// producer, readIndex records a violation and ignores it.
func (cq *CQ) readIndex() {
	ci := cq.attr.Record.LoadBE32(mlx5.RecordConsumer) & indexMask
	forward := (ci - cq.ci) & indexMask
	if forward > cq.pi-cq.ci {
		cq.nic.strict.addViolation(
			"completion queue %#x: consumer index %#x is not between %#x and %#x",
			cq.number, ci, cq.ci&indexMask, cq.pi&indexMask)
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
