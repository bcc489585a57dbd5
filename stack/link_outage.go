package stack

import (
	"os"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// outage is whether there has been no link for longer than Config.MaxOutage. Connections end then,
// and new ones are refused, with ENETDOWN. Listeners and UDP sockets stay.
type outage struct {
	now   atomic.Bool
	count atomic.Uint64 // of such outages
}

// begin is the moment the limit is reached. A second call does nothing.
func (o *outage) begin() {
	if !o.now.Swap(true) {
		o.count.Add(1)
	}
}

func (o *outage) end() { o.now.Store(false) }

// refuse is the error of a system call that needs the link, nil if there is one.
func (o *outage) refuse(call string) error {
	if o.now.Load() {
		return os.NewSyscallError(call, syscall.ENETDOWN)
	}
	return nil
}

// since is ENETDOWN if the limit has been reached since count was n.
func (o *outage) since(n uint64) error {
	if o.count.Load() != n {
		return syscall.ENETDOWN
	}
	return nil
}

// abortConnections ends all TCP connections, but for listeners. Their resets are lost.
func (s *Stack) abortConnections() {
	for _, ep := range s.net.RegisteredEndpoints() {
		if c, ok := ep.(*tcp.Endpoint); ok && tcp.EndpointState(c.State()) != tcp.StateListen {
			c.Abort()
		}
	}
}

// check is connState's, and ENETDOWN once an outage has ended the connection.
func (c *TCPConn) check(d *ioSide) error {
	if err := c.connState.check(d); err != nil {
		return err
	}
	return c.stack.outage.since(c.outages)
}

// orClosedErr is connState's, and ENETDOWN once an outage has ended the connection.
func (c *TCPConn) orClosedErr(err error) error {
	if down := c.stack.outage.since(c.outages); down != nil {
		err = down
	}
	return c.connState.orClosedErr(err)
}
