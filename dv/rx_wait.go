package dv

import (
	"fmt"
	"runtime"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// waiter is where a queue asks for events, and where they come.
type waiter struct {
	channel  *uverbs.CompChannel
	page     *uverbs.Page // with the register for asking, at byte offset register
	register int
	cqn      uint32
	sn       uint32 // events that came; a request names how many it has seen
}

// Arm asks for an event at the next frame. Poll once more afterwards, then
// Wait. A request that is still open is renewed. Buffers that Release has kept
// back for its next batch go to the NIC, too.
func (q *RxQueue) Arm() {
	if q.signals.stopped() || q.putOff() {
		return // completions that nobody looks at would raise the event at once, again and again
	}
	if q.pc != q.posted {
		q.publish()
	}
	word := mlx5.ArmWord(q.sn, false, q.cq.ci)
	q.cq.rec.StoreBE32(mlx5.RecordArm, word)
	mmio.ToDevice()
	q.page.Store64(q.register, mlx5.ArmDoorbell(word, q.cqn))
	q.count.arms.n++
	q.report()
	q.count.showWaits()
}

// Wait parks the goroutine until the event that Arm asked for, Wake, or the
// end: then it returns ErrClosed, or an error that is ErrFailed. It does not
// park on a ring without buffers, which no frame could wake it from: that is
// when all of them were sent on with TxQueue.PostFrame and are not back yet.
func (q *RxQueue) Wait() error {
	if q.signals.stopped() {
		return q.ended()
	}
	if q.posted == q.cc && q.Refill() == 0 {
		runtime.Gosched()
		return nil
	}
	q.asleep.Begin()
	n, err := q.channel.Wait()
	q.asleep.End()
	q.sn += uint32(n)
	q.count.events.n += uint64(n)
	if n == 0 {
		q.count.wakes.n++
	}
	q.count.showWaits()
	if err != nil && !q.signals.stopped() {
		q.fail(fmt.Errorf("wait for receive queue %d: %w", q.index, err))
	}
	if q.signals.stopped() {
		return q.ended()
	}
	return nil
}

// Wake makes the Wait that is going on, or else the next one, return nil. Any
// goroutine may call it.
func (q *RxQueue) Wake() { q.channel.Wake() }
