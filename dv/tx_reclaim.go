package dv

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Reclaim consumes completions, frees what they cover and returns how many
// packets that were. It also recovers a queue that failed.
func (q *TxQueue) Reclaim() int {
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
		tail := binary.BigEndian.Uint32(cqe[mlx5.CQEOwnWord:])
		if tail&0xfc != plainSend || !q.retire(uint16(tail>>16)) {
			done := q.done - before
			if done > 0 {
				q.futile = 0
			}
			q.broken(cqe[:])
			return int(done)
		}
		q.cq.ci++
	}
	q.cq.publish()
	q.lent.release(q.cc, q.pool)
	q.futile = 0
	q.count.completions.n += uint64(n)
	q.count.showDone()
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

// broken handles a completion that is no success.
func (q *TxQueue) broken(b []byte) {
	cqe := mlx5.CQE(b)
	q.log.Warn("send queue in error, replacing it", "queue", q.index, "completion", cqe.String(),
		"blocks", fmt.Sprintf("%d to %d", uint16(q.cc), uint16(q.rung)), "bytes", fmt.Sprintf("%x", b))
	q.reset(cqe.String())
}

// attend acts on what other goroutines said, and reports whether the queue may
// be used.
func (q *TxQueue) attend() bool {
	if q.alarm.over() {
		return false
	}
	if q.alarm.takeReset() {
		q.log.Warn("send queue hangs or was reported in error, replacing it", "queue", q.index)
		q.reset("none: reported by the device, or no completion in time")
	}
	return !q.alarm.over()
}

// reset replaces the kernel's and the NIC's part of the queue by a new one.
// Packets not reported as sent are lost, frames lent go back to the pool. If
// it cannot be done the device fails.
func (q *TxQueue) reset(cause string) {
	q.count.resets.n++
	q.count.lost.n += q.count.packets.n - q.done
	defer q.count.showFaults()
	if q.futile++; q.futile > maxFutile {
		q.fail(fmt.Errorf("send queue %d: %d resets in a row did not help, last error: %s", q.index, maxFutile, cause))
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

// stuckness is how long a full queue has seen no completion.
type stuckness struct {
	since time.Time
	cc    uint32
}

// txTimeout is how long a full ring may stand still before the queue is
// replaced. Linux's mlx5e waits 15 s; a ring is sent in less than 100 ms on
// the slowest link that a card has.
const txTimeout = 2 * time.Second

// full is the answer to a packet there is no room for.
func (q *TxQueue) full() error {
	q.count.stalls.n++
	q.count.showFaults()
	now := q.now()
	if q.stuck.since.IsZero() || q.stuck.cc != q.cc || q.rung == q.cc {
		q.stuck = stuckness{since: now, cc: q.cc}
	} else if now.Sub(q.stuck.since) > txTimeout {
		q.stuck = stuckness{}
		q.alarm.raise(alarmReset)
	}
	return ErrRingFull
}
