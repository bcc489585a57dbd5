package stack_test

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/stack"
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
	want := int64(runtime.GOMAXPROCS(0)) // as many goroutines: by a hash of the connection
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
			c := h.dialHeld(s, func() error {
				after := h.open("after", h.meet())
				if err := after.TakeOver(t.Context()); err != nil {
					return err
				}
				return <-handed
			})
			echoed(t, c)
		})
	})
	t.Run("Linux", func(t *testing.T) {
		onHost(t, func(t *testing.T, h *handoverWorld) {
			s := h.open("before", nil)
			var sockets []stack.KernelSocket
			c := h.dialHeld(s, func() (err error) {
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

// dialHeld dials a stack that does not look at the SYN until another has taken over, by change, or
// that waits for it.
func (h *handoverWorld) dialHeld(s *stack.Stack, change func() error) net.Conn {
	t := h.t
	t.Helper()
	release := holdWork(t, s)
	segments := s.Netstack().Stats().TCP.ValidSegmentsReceived
	before := segments.Value()
	var c net.Conn
	dialed := background(func() (err error) {
		c, err = h.nets[1].DialContext(t.Context(), "tcp", "10.9.0.1:7")
		return err
	})
	eventually(t, "the SYN waits", func() bool { return segments.Value() > before })
	over := make(chan struct{})
	changed := background(func() error {
		defer close(over)
		return change()
	})
	eventually(t, "the change waits, or is over", func() bool {
		select {
		case <-over:
			return true
		default:
			return s.WorksOff()
		}
	})
	release()
	must(t, result(t, "change", changed))
	must(t, result(t, "dial", dialed))
	t.Cleanup(func() { c.Close() })
	return c
}
