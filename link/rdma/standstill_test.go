package rdma

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

// polledQueue is a send queue with room for one packet after every so many looks for completions.
type polledQueue struct {
	sync.Mutex
	every int // 0: it stands still
	polls int
	room  int
}

func (q *polledQueue) Free() int    { return q.room }
func (q *polledQueue) Reclaim() int { return q.Reap() }
func (q *polledQueue) Check() bool  { return false }
func (q *polledQueue) Flush()       {}

func (q *polledQueue) MaxDatagrams() int { return 0 }

func (q *polledQueue) Reap() int {
	q.polls++
	if q.every == 0 || q.polls%q.every != 0 {
		return 0
	}
	q.room = 1024
	return 1
}

// set changes how often there are completions, and returns how many looks there were since the last
// change.
func (q *polledQueue) set(every int) (polls int) {
	q.Lock()
	defer q.Unlock()
	polls = q.polls
	q.every, q.polls = every, 0
	return polls
}

func (q *polledQueue) Post(*dv.TxPacket) error {
	q.room = 0
	return nil
}

// TestStandstill: while the ring stands still, as while the port is paused, a datagram costs a
// handful of looks for completions until it is refused, but for the first one, which finds that
// out; and a ring that moves is polled until there is room, before and after.
func TestStandstill(t *testing.T) {
	const datagrams, looks = 20, 5
	headers := bytes.Repeat([]byte{0x45}, 42)
	for name, send := range map[string]func(*sender) tcpip.Error{
		"packets": func(s *sender) tcpip.Error {
			s.lock()
			defer s.unlock()
			s.reclaim()
			pkt := segmentOf(1, 1)
			defer pkt.DecRef()
			return s.netstackError(s.postOrWait(pkt))
		},
		"datagrams": func(s *sender) tcpip.Error {
			_, err := s.writeDatagrams([]Datagram{{Headers: headers}}, fullRingWait)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var system clock.Clock
			q := &polledQueue{every: 7}
			flows := tcpfix.New(tcpip.NewStdClock(), random.Source{},
				func(*gstack.PacketBuffer, func() *gstack.PacketBuffer) bool { return true },
				func([]byte) {})
			defer flows.Close()
			s := newSender(q, 0, system, flows, newAdmission(flows.Key(), system))
			defer s.close()
			until := time.Now().Add(alive)
			moving := func() {
				t.Helper()
				q.set(7)
				for range datagrams {
					for send(s) != nil { // on a busy machine the wait may be over after one look
						if time.Now().After(until) {
							t.Fatal("nothing is sent although the ring moves")
						}
					}
				}
				if s.still {
					t.Error("the ring is taken to stand still")
				}
			}
			moving()
			q.set(0)
			for first := true; !s.still; first = false {
				if send(s) == nil {
					t.Fatal("sent without room")
				}
				if !first && time.Now().After(until) {
					t.Fatal("it is not found out that the ring stands still")
				}
			}
			found := q.set(0)
			for range datagrams {
				if send(s) == nil {
					t.Fatal("sent without room")
				}
			}
			if n := q.set(0); n > datagrams*looks {
				t.Errorf("%d looks for %d datagrams, want at most %d", n, datagrams,
					datagrams*looks)
			} else {
				t.Logf("%d looks to find out, then %d for %d datagrams", found, n, datagrams)
			}
			moving()
		})
	}
}

// postOrWait is send for a packet that waits for room.
func (s *sender) postOrWait(pkt *gstack.PacketBuffer) error {
	err := s.tryPost(pkt, kindOther)
	if err == dv.ErrRingFull {
		err = s.awaitRoom(pkt, kindOther, fullRingWait)
	}
	return err
}
