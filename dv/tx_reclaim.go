package dv

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Reclaim consumes completions, frees what they cover and returns how many
// packets that were. It also recovers a queue that failed.
func (q *TxQueue) Reclaim() int {
	n := q.Reap()
	if q.shown != q.count.completions.n {
		q.show()
	}
	return n
}

// Reap is Reclaim for those who look before every small write: the counters are made visible for every 16 completions, and for the
// last of them by Check.
func (q *TxQueue) Reap() int {
	if !q.alarm.quiet() && !q.attend() {
		return 0
	}
	n := q.cq.ready(int(q.cq.mask) + 1)
	if n == 0 {
		return 0
	}
	before := q.done
	for range n {
		cqe := q.cq.next()
		tail := cqe.Tail()
		if tail&0xfc != plainSend || !q.retire(uint16(tail>>16)) {
			done := q.done - before
			if done > 0 {
				q.recovery.good()
			}
			q.broken(cqe)
			return int(done)
		}
		q.cq.ci++
	}
	q.cq.publish()
	q.lent.release(q.cc, q.pool)
	q.recovery.good()
	q.count.completions.n += uint64(n)
	if q.count.completions.n-q.shown >= showEvery {
		q.show()
	}
	return int(q.done - before)
}

// plainSend is the last byte of a completion of a send, leaving out the
// solicited and the owner bit.
const plainSend = uint32(mlx5.CQEReq) << 4

// retire frees everything up to the descriptor that starts at the 16-bit count
// index. It reports whether that one had asked for a completion and was
// not completed yet.
func (q *TxQueue) retire(index uint16) bool {
	start := q.cc + uint32(index-uint16(q.cc))
	m := &q.marks[start&q.mask]
	if m.start != start || m.end == start || q.rung-q.cc < m.end-q.cc {
		return false
	}
	q.cc, q.stage.tail, q.done = m.end, m.stage, m.packets
	return true
}

// broken handles a completion that is no success: it replaces the queue, or has attend do so if that was done many times in a row.
func (q *TxQueue) broken(cqe *mlx5.CQE) {
	cause := fmt.Sprintf("%s in blocks %d to %d, bytes %x", cqe.String(), uint16(q.cc), uint16(q.rung), cqe[:])
	if q.recovery.wait() > 0 {
		q.recovery.pending = cause
		q.alarm.raise(alarmReset)
		return
	}
	q.reset(cause)
}

// attend acts on what other goroutines said and on a reset that was put off, and reports whether the queue may be used.
func (q *TxQueue) attend() bool {
	if q.alarm.over() {
		return false
	}
	if !q.alarm.wantsReset() {
		return true
	}
	if q.recovery.wait() > 0 {
		return false
	}
	q.alarm.clearReset()
	q.reset(q.recovery.takePending())
	return !q.alarm.over()
}

// reset replaces the kernel's and the NIC's part of the queue by a new one.
// Packets not reported as sent are lost, frames lent go back to the pool. If
// it cannot be done the device fails.
func (q *TxQueue) reset(cause string) {
	q.count.resets.n++
	q.count.lost.n += q.count.packets.n - q.done
	defer q.count.showFaults()
	hope := q.recovery.begin(cause)
	q.report()
	if !hope {
		q.fail(fmt.Errorf("send queue %d: %d resets in a row did not help, last error: %s", q.index, q.recovery.futile-1, cause))
		return
	}
	if err := q.halt(); err != nil {
		q.fail(fmt.Errorf("destroy send queue %d: %w", q.index, err))
		return
	}
	q.lent.release(q.pc, q.pool)
	q.done = q.count.packets.n
	q.rewind()
	if err := q.start(); err != nil {
		q.fail(fmt.Errorf("replace send queue %d: %w", q.index, err))
	}
}
