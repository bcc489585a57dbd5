//go:build linux

package hoststack

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// deaf returns the address of a listener whose backlog is full: it does not answer SYNs.
func (r *run) deaf() string {
	r.Helper()
	addr := r.world.deaf(r)
	host, port, _ := net.SplitHostPort(addr)
	r.names[port] = "deaf"
	return net.JoinHostPort(host, port)
}

// fill dials until no dial is answered, twice in a row: a single failure may be caused by a busy
// machine.
func (r *run) fill(addr string) {
	r.Helper()
	for unanswered, dials := 0, 0; unanswered < 2; dials++ {
		if dials == 10 {
			r.Fatal("the backlog does not fill")
		}
		c, err := r.client.DialFrom(context.Background(), nil, ample, "tcp", addr)
		if err != nil {
			unanswered++
			continue
		}
		unanswered = 0
		r.closed(c)
	}
}

// deafKernel listens with a backlog of 1, which net.Listen cannot.
func deafKernel(r *run) string {
	r.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	r.must(err)
	r.Cleanup(func() { syscall.Close(fd) })
	r.must(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	r.must(syscall.Listen(fd, 1))
	sa, err := syscall.Getsockname(fd)
	r.must(err)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(sa.(*syscall.SockaddrInet4).Port))
	r.fill(addr)
	return addr
}

// deafStack uses a stack of its own, because the backlog is an option of the stack.
func deafStack(r *run) string {
	r.Helper()
	server, client := netpair.New(r, netpair.Faults{},
		netpair.Server(func(c *stack.Config) { c.TCP.Backlog = 1 }))
	r.client = netstack{client}
	return r.full(netstack{server})
}

// full listens on a stack whose backlog is 1, and fills it.
func (r *run) full(server sockets) string {
	r.Helper()
	l, err := server.Listen("tcp", net.JoinHostPort(r.server4.String(), "0"))
	r.must(err)
	r.closed(l)
	addr := netip.MustParseAddrPort(l.Addr().String()).String()
	r.fill(addr)
	return addr
}

// timeoutOnly hides which of the two deadline sentinels err is: package net reports either,
// depending on which timer expires first.
type timeoutOnly struct{ error }

func (e timeoutOnly) Timeout() bool { return e.error.(net.Error).Timeout() }

//lint:ignore SA1019 programs still ask it, so it is compared
func (e timeoutOnly) Temporary() bool { return e.error.(net.Error).Temporary() }

func withCancelAfter(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(d, cancel)
	return ctx, cancel
}
