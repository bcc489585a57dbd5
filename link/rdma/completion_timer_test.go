package rdma

import (
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

// slowInterface is the send queue of an interface that has room for as many frames as are allowed.
type slowInterface struct {
	sync.Mutex
	waiting, allowed, sent int
}

func (q *slowInterface) Post(*packet.TxFrame) error { q.waiting++; return nil }
func (q *slowInterface) Flush()                     { q.Retry() }
func (q *slowInterface) Waiting() int               { return q.waiting }

func (q *slowInterface) Retry() int {
	n := min(q.waiting, q.allowed-q.sent)
	q.waiting, q.sent = q.waiting-n, q.sent+n
	return n
}

// allow makes room for n frames in all.
func (q *slowInterface) allow(n int) {
	q.Lock()
	defer q.Unlock()
	q.allowed = n
}

func (q *slowInterface) state() (sent, waiting int) {
	q.Lock()
	defer q.Unlock()
	return q.sent, q.waiting
}

// TestFrameWaitsForRoom: a frame for which the interface has no room leaves within a millisecond of
// there being some, though nothing else is sent or received; then the timer is at rest.
func TestFrameWaitsForRoom(t *testing.T) {
	flows := tcpfix.New(tcpip.NewStdClock(), random.Source{},
		func(*gstack.PacketBuffer, func() *gstack.PacketBuffer) bool { return true })
	defer flows.Close()
	clock, out := clocktest.New(), &slowInterface{allowed: 1}
	s := newSender(&txSocket{Sender: out}, 0, clock.Clock(), flows,
		newAdmission(flows.Key(), clock.Clock()))
	defer s.close()
	for range 2 { // the first arms the timer for an interface with room
		if _, err := s.writeDatagrams([]Datagram{{make([]byte, 42), []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(7 * roomInterval)
	if sent, waiting := out.state(); sent != 1 || waiting != 1 {
		t.Fatalf("%d sent, %d wait", sent, waiting)
	}
	out.allow(2)
	clock.Advance(roomInterval)
	if sent, _ := out.state(); sent != 2 {
		t.Errorf("%d sent in the next %v, want 2", sent, roomInterval)
	}
	clock.Advance(2 * time.Second)
	if n := clock.Timers(); n != 0 {
		t.Errorf("%d timers are set when nothing waits", n)
	}
}
