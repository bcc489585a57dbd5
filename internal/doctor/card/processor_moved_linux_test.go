package card_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// queuePerProcessor is a netdev with a send queue per processor, on a system that moves the thread
// after each frame to the next processor that it may run on. The last queue is the fastest.
type queuePerProcessor struct{ wire.Wire }

func (q queuePerProcessor) Send(frames []frame.Frame) (int, error) {
	queues := make([][]frame.Frame, processors())
	for i, f := range frames {
		at := i % len(queues)
		queues[at] = append(queues[at], f)
	}
	for i := len(queues) - 1; i >= 0; i-- {
		if _, err := q.Wire.Send(queues[i]); err != nil {
			return 0, err
		}
	}
	return len(frames), nil
}

// processors is how many this thread may run on.
func processors() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	return max(set.Count(), 1)
}

// TestMovedThread: a card is not blamed for frames that overtook each other in the netdev's queues
// on their way to it.
func TestMovedThread(t *testing.T) {
	if processors() < 2 {
		need.That(t, "processors", errors.New("a thread cannot be moved on one"))
	}
	r := newRig(t, simnic.Config{})
	r.pulls()
	r.cfg.Wire = queuePerProcessor{r.cfg.Wire}
	report := card.Run(t.Context(), r.cfg)
	if report.Count(doctor.Failed) > 0 {
		t.Errorf("%s", text(t, report))
	}
	r.nothingLeft(t)
}
