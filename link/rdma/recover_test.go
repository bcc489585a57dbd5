package rdma

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// alive is the limit for events that must happen soon: far above what they take, and below the
// minutes that an unattended queue costs.
const alive = 20 * time.Second

// answers sends one small request over conn and reports whether it came back in time.
func answers(conn net.Conn, patience time.Duration) error {
	want, got := []byte("are you there?"), make([]byte, 14)
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(want); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%q came back", got)
	}
	return nil
}

// sendErrors makes sends of a NIC fail as FaultSendError does.
func sendErrors(count int, rate float64, seed uint64) simnic.QueueFault {
	return simnic.QueueFault{Kind: simnic.FaultSendError, Syndrome: 4,
		Count: count, Rate: rate, Seed: seed}
}

// TestSendErrors: however many sends of a server fail, one on an idle connection or many in a row,
// it answers soon after the last failure.
func TestSendErrors(t *testing.T) {
	for _, count := range []int{1, 3, 32} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			server, client := pair(t, setup{})
			go echo(server.listen(t, server.v4, 80))
			conn := client.dial(t, server.v4, 80)
			if err := answers(conn, alive); err != nil {
				t.Fatal(err)
			}
			fault := server.nic.Inject(sendErrors(count, 0, 0))
			if count > 1 { // otherwise TCP's growing timeouts would set the pace
				strike(t, server, fault, count-1)
			}
			start := time.Now()
			if err := answers(conn, alive); err != nil {
				t.Fatalf("%d sends failed, then: %v", fault.Hits(), err)
			}
			t.Logf("answered after %v", time.Since(start).Round(time.Millisecond))
			if fault.Hits() != count {
				t.Errorf("%d sends failed, want %d", fault.Hits(), count)
			}
		})
	}
}

// strike has a server send until count sends have failed.
func strike(t *testing.T, server *host, fault *simnic.Injection, count int) {
	t.Helper()
	pkt := udpPacket()
	defer pkt.DecRef()
	for deadline := time.Now().Add(alive); fault.Hits() < count; {
		server.ep.writeBurst([]*gstack.PacketBuffer{pkt})
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d errors in %v: the queue does not come back",
				fault.Hits(), count, alive)
		}
		time.Sleep(100 * time.Microsecond) // a pace, not a synchronisation
	}
}

// TestReceiveErrors is TestSendErrors for the other direction.
func TestReceiveErrors(t *testing.T) {
	need.Long(t, "queues that fail many times, 5 s")
	for _, count := range []int{1, 64} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			server, client := pair(t, setup{})
			go echo(server.listen(t, server.v4, 80))
			conn := client.dial(t, server.v4, 80)
			fault := server.nic.Inject(simnic.QueueFault{Kind: simnic.FaultReceiveError,
				Syndrome: 4, Count: count})
			for deadline := time.Now().Add(alive); fault.Hits() < count; {
				// so that 64 errors do not take 64 timeouts of TCP
				post(t, client.dev.Tx(0), arpFrame())
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d receive errors in %v: the queue does not come back",
						fault.Hits(), count, alive)
				}
				time.Sleep(100 * time.Microsecond) // a pace, not a synchronisation
			}
			if err := answers(conn, alive); err != nil {
				t.Fatal(err)
			}
			if err := server.dev.Err(); err != nil {
				t.Errorf("the device was given up: %v", err)
			}
		})
	}
}

// TestSendErrorsOnEveryQueue: connections spread over four queues, all of which fail, continue or
// can be reopened.
func TestSendErrorsOnEveryQueue(t *testing.T) {
	server, client := pair(t, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 4, TxQueues: 4}}})
	go echo(server.listen(t, server.v4, 80))
	conns := make([]net.Conn, 24)
	for i := range conns {
		conns[i] = client.dial(t, server.v4, 80)
	}
	const errors = 24
	fault := server.nic.Inject(sendErrors(errors, 0.3, seed(t).Uint64()))
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			for n := 0; n < 3 || fault.Hits() < errors && n < 1000; n++ {
				if err := answers(conn, alive); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if fault.Hits() == 0 {
		t.Error("no send failed")
	}
}

// TestManySendErrors: while one send in five fails the server may fail requests; soon after that it
// must serve.
func TestManySendErrors(t *testing.T) {
	server, client := pair(t, setup{})
	go echo(server.listen(t, server.v4, 80))
	conns := make([]net.Conn, 8)
	for i := range conns {
		conns[i] = client.dial(t, server.v4, 80)
	}
	fault := server.nic.Inject(sendErrors(0, 0.2, seed(t).Uint64()))
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			for time.Now().Before(end) {
				if answers(conn, alive) != nil {
					return
				}
			}
		})
	}
	for time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond) // duration of the attack
	}
	fault.Remove()
	over := time.Now()
	fresh := client.dial(t, server.v4, 80)
	if err := answers(fresh, alive); err != nil {
		t.Errorf("after %d errors: %v", fault.Hits(), err)
	}
	t.Logf("%d errors, %d resets; a new connection served %v after the last", fault.Hits(),
		server.dev.Tx(0).Stats().Resets, time.Since(over).Round(time.Millisecond))
	wg.Wait()
	if err := server.dev.Err(); err != nil {
		t.Errorf("the device was given up: %v", err)
	}
}

// tap counts the frames that leave a NIC.
type tap struct {
	wire.Wire
	sent chan struct{}
}

func (w *tap) Send(frames []frame.Frame) (int, error) {
	for range frames {
		w.sent <- struct{}{}
	}
	return w.Wire.Send(frames)
}

// TestFirstPacketAfterSendError: the packet after one that failed leaves at once, without any
// further send.
func TestFirstPacketAfterSendError(t *testing.T) {
	cable := &tap{sent: make(chan struct{}, 1024)}
	nics, devs := devices(t,
		setup{wire: func(w wire.Wire) wire.Wire { cable.Wire = w; return cable }})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	pkt := udpPacket()
	defer pkt.DecRef()
	const rounds = 200
	took := make([]time.Duration, 0, rounds)
	for range rounds {
		fault := nics[0].Inject(sendErrors(1, 0, 0))
		if err := e.writeOne(pkt); err != nil || fault.Hits() != 1 {
			t.Fatalf("%d hits, %v", fault.Hits(), err)
		}
		fault.Remove()
		start := time.Now()
		if err := e.writeOne(pkt); err != nil {
			t.Fatal(err)
		}
		select {
		case <-cable.sent:
			took = append(took, time.Since(start))
		case <-time.After(alive):
			t.Fatalf("after %d rounds: nothing goes out in %v", len(took), alive)
		}
	}
	slices.Sort(took)
	t.Logf("first packet out again: p50 %v, p99 %v", took[rounds/2], took[rounds*99/100])
	if st := devs[0].Tx(0).Stats(); st.Resets != rounds || st.Drops.Lost != rounds {
		t.Errorf("%d resets, %d packets lost, want %d of each", st.Resets, st.Drops.Lost, rounds)
	}
}

// writeSome makes an endpoint without a peer write packets.
func writeSome(t *testing.T, dev *dv.Device, packets int) *Endpoint {
	t.Helper()
	e, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	pkt := udpPacket()
	defer pkt.DecRef()
	for range packets {
		if err := e.writeOne(pkt); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// soon waits until a send queue's counters have the expected values.
func soon(t *testing.T, q *dv.TxQueue, want func(s dv.TxStats) bool) {
	t.Helper()
	for deadline := time.Now().Add(alive); !want(q.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %+v", alive, q.Stats())
		}
	}
}

// TestCountersSettle: the last packet is counted soon, although no other follows.
func TestCountersSettle(t *testing.T) {
	_, devs := devices(t, setup{})
	start := time.Now()
	writeSome(t, devs[0], 24)
	soon(t, devs[0].Tx(0), func(s dv.TxStats) bool {
		return s.Packets == 24 && s.Doorbells == 24 && s.Completions == 24 &&
			s.Inline+s.MultiPacket >= 24
	})
	t.Logf("all counted after %v", time.Since(start).Round(time.Millisecond))
}

// TestLastSendFails: a queue whose last packet failed is replaced, although no other follows.
func TestLastSendFails(t *testing.T) {
	nics, devs := devices(t, setup{})
	nics[0].Inject(sendErrors(1, 0, 0))
	start := time.Now()
	writeSome(t, devs[0], 1)
	soon(t, devs[0].Tx(0), func(s dv.TxStats) bool { return s.Resets == 1 && s.Drops.Lost == 1 })
	t.Logf("replaced after %v", time.Since(start).Round(time.Millisecond))
}

// TestLastSendPaused: a packet held back by the other end of the wire is polled until it is sent.
func TestLastSendPaused(t *testing.T) {
	nics, devs := devices(t, setup{})
	nics[0].Inject(simnic.QueueFault{Kind: simnic.FaultPause, Delay: time.Second})
	writeSome(t, devs[0], 1)
	soon(t, devs[0].Tx(0), func(s dv.TxStats) bool { return s.Completions == 1 && s.Resets == 0 })
}
