package rdma

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

func containsTimes(s, part string) int { return strings.Count(s, part) }

// sink is a stack that counts.
type sink struct {
	mu   sync.Mutex
	n    int
	more chan struct{}
}

func newSink() *sink { return &sink{more: make(chan struct{}, 1)} }

func (s *sink) DeliverNetworkPacket(tcpip.NetworkProtocolNumber, *gstack.PacketBuffer) {
	s.mu.Lock()
	s.n++
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (*sink) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *gstack.PacketBuffer) {}

// await returns when at least n packets have come.
func (s *sink) await(t testing.TB, n int) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		got := s.n
		s.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-s.more:
		case <-timeout:
			t.Fatalf("%d packets, want %d", got, n)
		}
	}
}

// post sends a frame to the device behind q's NIC.
func post(t testing.TB, q *dv.TxQueue, frames ...[]byte) {
	t.Helper()
	q.Lock()
	defer q.Unlock()
	for _, f := range frames {
		if err := q.Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
	q.Reclaim()
}

// arpFrame is a frame to device 1 that no stack needs to understand.
func arpFrame() []byte {
	return append([]byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x06"),
		make([]byte, 46)...)
}

func TestAttachDetach(t *testing.T) {
	_, devs := devices(t, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}}})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.Attach(nil)
	e.Wait()
	if e.IsAttached() {
		t.Error("attached to nothing")
	}
	for range 3 {
		s := newSink()
		e.Attach(s)
		if !e.IsAttached() {
			t.Error("not attached")
		}
		post(t, devs[1].Tx(0), arpFrame())
		s.await(t, 1)
		e.Attach(nil)
		e.Attach(nil)
		e.Wait()
		e.workers.running.Wait() // frames that a worker still holds are lost
		if e.IsAttached() {
			t.Error("still attached")
		}
	}
	first, second := newSink(), newSink()
	e.Attach(first)
	before := e.workers
	e.Attach(second) // without a nil between
	before.running.Wait()
	post(t, devs[1].Tx(0), arpFrame())
	second.await(t, 1)
	e.Close()
	e.Attach(newSink())
	if e.IsAttached() {
		t.Error("attached after Close")
	}
	var list gstack.PacketBufferList
	pkt := tcpframe.ACKPacket(1)
	list.PushBack(pkt)
	if n, err := e.WritePackets(list); n != 0 || err == nil {
		t.Errorf("WritePackets after Close: %d, %v", n, err)
	}
	list.Reset()
}

func TestCloseUnattached(t *testing.T) {
	_, devs := devices(t, setup{})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	e.SetOnCloseAction(func() { calls++ })
	e.Close()
	e.Close()
	e.Wait()
	e.Attach(nil)
	if calls != 1 {
		t.Errorf("close action ran %d times", calls)
	}
}

// TestLifetimeConcurrently does everything at once, frames coming in, and expects no race, panic,
// hang or worker left.
func TestLifetimeConcurrently(t *testing.T) {
	_, devs := devices(t, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}}})
	for range 20 {
		e, err := New(devs[0], Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := newSink()
		e.Attach(s)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 20 {
					switch i {
					case 0:
						e.Attach(s)
						e.Attach(nil)
					case 1:
						post(t, devs[1].Tx(0), arpFrame(), arpFrame())
					case 2:
						pkt := tcpframe.ACKPacket(1)
						e.writeOne(pkt)
						pkt.DecRef()
					case 3:
						e.IsAttached()
						e.Wait()
						e.Stats()
						e.SetMTU(uint32(1400 + i))
						e.SetLinkAddress(ourMAC)
						_, _ = e.MTU(), e.LinkAddress()
					}
				}
			})
		}
		wg.Go(e.Close)
		wg.Go(e.Close)
		wg.Wait()
		e.Close()
	}
}

// TestNothingAfterClose: no packet reaches the stack after Close has returned.
func TestNothingAfterClose(t *testing.T) {
	_, devs := devices(t, setup{})
	for range 20 {
		e, err := New(devs[0], Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := newSink()
		e.Attach(s)
		post(t, devs[1].Tx(0), arpFrame())
		s.await(t, 1)
		post(t, devs[1].Tx(0), arpFrame(), arpFrame(), arpFrame())
		e.Close()
		s.mu.Lock()
		n := s.n
		s.mu.Unlock()
		post(t, devs[1].Tx(0), arpFrame())
		s.mu.Lock()
		if s.n != n {
			t.Error("delivered after Close")
		}
		s.mu.Unlock()
	}
}

// TestDeviceGoesAway: workers end by themselves when the device is stopped, and everything can
// still be called.
func TestDeviceGoesAway(t *testing.T) {
	_, devs := devices(t, setup{})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSink()
	e.Attach(s)
	post(t, devs[1].Tx(0), arpFrame())
	s.await(t, 1)
	devs[0].Stop()
	e.workers.running.Wait()
	pkt := tcpframe.ACKPacket(1)
	if err := e.writeOne(pkt); err == nil {
		t.Error("written to a stopped device")
	}
	pkt.DecRef()
	e.Attach(nil)
	e.Close()
	if err := devs[0].Close(); err != nil {
		t.Error(err)
	}
	e.Stats()
}

// TestRemoveNICUnderTraffic removes NICs while the worker delivers. A link that waits for its
// worker in Attach(nil) or Wait hangs here: both are called with the mutex that the worker wants.
func TestRemoveNICUnderTraffic(t *testing.T) {
	a, b := pair(t, setup{})
	local, remote := netip.AddrPortFrom(a.v4, 7), netip.AddrPortFrom(b.v4, 9)
	stop, sending := make(chan struct{}), sync.WaitGroup{}
	conn := b.udp(t, remote, local)
	sending.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				conn.Write([]byte("x")) // fails while there is no NIC to resolve
			}
		}
	})
	for range 20 {
		server := a.udp(t, local, netip.AddrPort{})
		if _, _, err := server.ReadFrom(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		done := make(chan tcpip.Error, 1)
		go func() { done <- a.stack.RemoveNIC(1) }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			panic("RemoveNIC hangs")
		}
		server.Close()
		ep, err := New(a.dev, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ep.Close)
		a.ep, a.acks = ep, NewACKCoalescer(ep, ACKOptions{})
		a.attach(t)
	}
	close(stop)
	sending.Wait()
}

// TestStackWait: Stack.Wait attaches nil and waits under the stack's mutex, then closes.
func TestStackWait(t *testing.T) {
	a, b := pair(t, setup{})
	conn := b.udp(t, netip.AddrPortFrom(b.v4, 9), netip.AddrPortFrom(a.v4, 7))
	server := a.udp(t, netip.AddrPortFrom(a.v4, 7), netip.AddrPort{})
	for range 10 {
		conn.Write([]byte("x"))
	}
	if _, _, err := server.ReadFrom(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	server.Close()
	done := make(chan struct{})
	go func() {
		a.stack.Close()
		a.stack.Wait()
		close(done)
	}()
	for {
		select {
		case <-done:
			if a.ep.IsAttached() {
				t.Error("still attached")
			}
			return
		case <-time.After(20 * time.Second):
			panic("Stack.Wait hangs")
		default:
			conn.Write([]byte("x"))
		}
	}
}
