package rdma

import (
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

// lazyQueue is a send queue that leaves frames where they are until Flush. It is full at first.
type lazyQueue struct {
	sync.Mutex
	t      *testing.T
	room   int
	posted int
	sent   int
	held   []*gstack.PacketBuffer // what must not be released before Flush
}

func (q *lazyQueue) Free() int    { return q.room }
func (q *lazyQueue) Reap() int    { return min(q.room, 1) }
func (q *lazyQueue) Reclaim() int { return q.Reap() }
func (q *lazyQueue) Check() bool  { return false }

func (q *lazyQueue) MaxDatagrams() int { return 0 }

func (q *lazyQueue) Post(*dv.TxPacket) error {
	if q.room == 0 {
		return dv.ErrRingFull
	}
	q.posted++
	return nil
}

func (q *lazyQueue) Flush() {
	for ; q.sent < q.posted; q.sent++ {
		if n := q.held[q.sent].ReadRefs(); n != 1 {
			q.t.Errorf("packet %d of %d has %d references when it is read", q.sent, len(q.held), n)
		}
	}
}

// TestPacketsAreHeldUntilFlush makes segments wait, releases the stack's references, and then makes
// room: the packets are intact when they are read at the doorbell, and afterwards they are
// released.
func TestPacketsAreHeldUntilFlush(t *testing.T) {
	for name, drain := range map[string]func(*sender){
		"worker": (*sender).tryDrain, "timer": (*sender).expire, "completions": (*sender).check,
		"reception": (*sender).tryReclaim, "close": (*sender).close,
	} {
		t.Run(name, func(t *testing.T) {
			q := &lazyQueue{t: t}
			flows := tcpfix.New(tcpip.NewStdClock(), random.Source{},
				func(*gstack.PacketBuffer, func() *gstack.PacketBuffer) bool { return true },
				func([]byte) {})
			defer flows.Close()
			still := clocktest.New().Clock() // no timer drains before the test does
			s := newSender(q, 0, still, flows, newAdmission(flows.Key(), still))
			defer s.close()
			q.Lock()
			for i := range 3 {
				pkt := segmentOf(1, uint32(i))
				q.held = append(q.held, pkt)
				if err := s.enqueue(pkt); err != nil {
					t.Fatal(err)
				}
				pkt.DecRef()
			}
			q.room = 1024
			whole := []Datagram{{Headers: make([]byte, 60)}}
			if n := s.postWhole(whole); n != 0 { // about which others decide
				t.Errorf("%d datagrams overtake what waits", n)
			}
			q.Unlock()
			drain(s)
			if q.sent != 3 || s.backlog.waiting.Load() != 0 {
				t.Fatalf("%d sent, %d wait", q.sent, s.backlog.waiting.Load())
			}
			for i, pkt := range q.held {
				if n := pkt.ReadRefs(); n > 0 {
					t.Errorf("packet %d has %d references left", i, n)
				}
			}
		})
	}
}

// TestFullRingInVirtualTime: where time stands still, a datagram that finds no room is refused, and
// not waited for without end.
func TestFullRingInVirtualTime(t *testing.T) {
	flows := tcpfix.New(tcpip.NewStdClock(), random.Source{},
		func(*gstack.PacketBuffer, func() *gstack.PacketBuffer) bool { return true },
		func([]byte) {})
	defer flows.Close()
	still := clocktest.New().Clock()
	s := newSender(&lazyQueue{t: t}, 0, still, flows, newAdmission(flows.Key(), still))
	defer s.close()
	n, err := s.writeDatagrams([]Datagram{{Headers: make([]byte, 42), Payload: []byte("x")}},
		fullRingWait)
	if _, full := err.(*tcpip.ErrNoBufferSpace); n != 0 || !full {
		t.Errorf("%d written, %v", n, err)
	}
}
