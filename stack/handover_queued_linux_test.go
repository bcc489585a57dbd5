package stack_test

import (
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// holdWork keeps every goroutine of netstack that takes segments from queues in a callback, until
// release is called: that of an endpoint whose dial on netstack's loopback interface was refused.
func holdWork(t *testing.T, s *stack.Stack) (release func()) {
	t.Helper()
	var held atomic.Int64
	end := make(chan struct{})
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	at := tcpip.FullAddress{Addr: tcpip.AddrFrom4([4]byte{127, 0, 0, 1}), Port: 9}
	from := at
	want := int64(stack.DefaultWorkers(runtime.GOMAXPROCS(0))) // by a hash of the connection
	eventually(t, "all of netstack's goroutines are held", func() bool {
		q := new(waiter.Queue)
		e := waiter.NewFunctionEntry(waiter.EventErr, func(waiter.EventMask) {
			held.Add(1)
			<-end
		})
		q.EventRegister(&e)
		ep, err := s.Netstack().NewEndpoint(tcp.ProtocolNumber, header.IPv4ProtocolNumber, q)
		if err != nil {
			t.Fatal(err)
		}
		from.Port++
		if err := ep.Bind(from); err != nil { // a port of its own: held ones are locked
			t.Fatal(err)
		}
		_ = ep.Connect(at) // goes on behind
		return held.Load() == want
	})
	return release
}

// TestHandOverQueuedSYN: a client whose SYN netstack has, but has not looked at, when another takes
// over is ours, and nobody resets it: with a newcomer, and with Linux.
func TestHandOverQueuedSYN(t *testing.T) {
	t.Run("newcomer", func(t *testing.T) {
		onEachLink(t, func(t *testing.T, h *handoverWorld) {
			s := h.open("before", nil)
			handed := h.wait(s)
			client := h.queueSYN(s)
			after := h.open("after", h.meet())
			c := client.during(func() error { return after.TakeOver(t.Context()) })
			must(t, result(t, "HandOver", handed))
			echoed(t, c)
		})
	})
	t.Run("Linux", func(t *testing.T) {
		onHost(t, func(t *testing.T, h *handoverWorld) {
			s := h.open("before", nil)
			var sockets []stack.KernelSocket
			c := h.queueSYN(s).during(func() (err error) {
				sockets, err = s.HandOverToKernel(t.Context())
				return err
			})
			h.serveKernel(sockets)
			echoed(t, c)
			if got := h.resets(); got != "0" {
				t.Errorf("the kernel has sent %s RSTs", got)
			}
		})
	})
}

// queuedSYN is a client whose SYN waits in a queue of netstack's until release is called.
type queuedSYN struct {
	t       *testing.T
	s       *stack.Stack
	release func()
	conn    net.Conn // set when dialed says nil
	dialed  <-chan error
}

func (h *handoverWorld) queueSYN(s *stack.Stack) *queuedSYN {
	h.t.Helper()
	q := &queuedSYN{t: h.t, s: s, release: holdWork(h.t, s)}
	segments := s.Netstack().Stats().TCP.ValidSegmentsReceived
	before := segments.Value()
	q.dialed = background(func() (err error) {
		q.conn, err = h.nets[1].DialContext(h.t.Context(), "tcp", "10.9.0.1:7")
		return err
	})
	eventually(h.t, "the SYN waits", func() bool { return segments.Value() > before })
	return q
}

// during is the client, whose SYN is released once change, which has another take over, waits for
// that or is over.
func (q *queuedSYN) during(change func() error) net.Conn {
	q.t.Helper()
	changed := background(change)
	eventually(q.t, "the change waits, or is over", func() bool {
		return len(changed) > 0 || q.s.WorksOff()
	})
	q.release()
	must(q.t, result(q.t, "change", changed))
	must(q.t, result(q.t, "dial", q.dialed))
	q.t.Cleanup(func() { q.conn.Close() })
	return q.conn
}

// TestHandOverBusyLink: while a worker of the link is not done with what it has at hand nobody
// takes over, and nothing changes.
func TestHandOverBusyLink(t *testing.T) {
	need.Long(t, "a link is given 5 s")
	h := newHandoverWorld(t)
	s := h.open("before", nil)
	old := h.dial("tcp", 7)
	echoed(t, old)
	release := h.holdWorker(s)
	h.wait(s)
	after := h.open("after", h.meet())
	err := after.TakeOver(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "what it received 5s ago: try again") {
		t.Errorf("TakeOver: %v", err)
	}
	release()
	must(t, after.Close())
	echoed(t, old)
	echoed(t, h.dial("tcp", 7))
	if got := s.Conns(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

// holdWorker keeps the link's worker that delivers a datagram in netstack's callback of its socket,
// until release is called.
func (h *handoverWorld) holdWorker(s *stack.Stack) (release func()) {
	t := h.t
	t.Helper()
	held, end := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	q, hold := new(waiter.Queue), sync.OnceFunc(func() { close(held) })
	e := waiter.NewFunctionEntry(waiter.ReadableEvents, func(waiter.EventMask) {
		hold()
		<-end
	})
	q.EventRegister(&e)
	ep, err := s.Netstack().NewEndpoint(udp.ProtocolNumber, header.IPv4ProtocolNumber, q)
	if err != nil {
		t.Fatal(err)
	}
	if err := ep.Bind(tcpip.FullAddress{Port: 60}); err != nil {
		t.Fatal(err)
	}
	_, failed := h.dial("udp", 60).Write([]byte("x"))
	must(t, failed)
	<-held
	return release
}
