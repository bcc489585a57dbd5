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
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
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
func (q *slowInterface) MaxDatagrams() int          { return 0 }

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

// newSlowSender is a sender on an interface that has room for some frames.
func newSlowSender(t *testing.T, allowed int) (*clocktest.Clock, *slowInterface, *sender) {
	flows := tcpfix.New(tcpip.NewStdClock(), random.Source{},
		func(*gstack.PacketBuffer, func() *gstack.PacketBuffer) bool { return true },
		func([]byte) {})
	t.Cleanup(flows.Close)
	clock, out := clocktest.New(), &slowInterface{allowed: allowed}
	s := newSender(&txSocket{Sender: out}, 0, clock.Clock(), flows,
		newAdmission(flows.Key(), clock.Clock()))
	t.Cleanup(s.close)
	return clock, out, s
}

// TestFrameWaitsForRoom: a frame for which the interface has no room leaves within a millisecond of
// there being some, though nothing else is sent or received; then the timer is at rest.
func TestFrameWaitsForRoom(t *testing.T) {
	clock, out, s := newSlowSender(t, 1)
	for range 2 { // the first arms the timer for an interface with room
		one := []Datagram{{Headers: make([]byte, 42), Payload: []byte("x")}}
		if _, err := s.writeDatagrams(one, fullRingWait); err != nil {
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

// TestBacklogWaitsForRoom: of two segments the interface gets room for the first when the timer for
// that looks; the second, which comes out of the backlog then, is not forgotten.
func TestBacklogWaitsForRoom(t *testing.T) {
	clock, out, s := newSlowSender(t, 0)
	for seq := range uint32(2) {
		pkt := segmentOf(1, seq)
		defer pkt.DecRef()
		p := hdr.ParseSent(pkt, s.flows.Key())
		s.begin()
		if err := s.send(pkt, &p, 0); err != nil {
			t.Fatal(err)
		}
		s.finish(1)
	}
	clock.Advance(roomInterval - backlogPause) // the backlog's timer comes again later
	for n := 1; n <= 2; n++ {
		out.allow(n)
		clock.Advance(roomInterval)
		if sent, waiting := out.state(); sent != n {
			t.Fatalf("%v after there was room for %d frames %d are sent, %d wait", roomInterval, n,
				sent, waiting)
		}
	}
	clock.Advance(2 * time.Second)
	if n := clock.Timers(); n != 0 {
		t.Errorf("%d timers are set when nothing waits", n)
	}
}
