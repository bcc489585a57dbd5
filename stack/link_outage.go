package stack

import (
	"os"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
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

// restartSlowStart has connections whose retransmission timer has expired begin as on a new path:
// with the initial window and threshold, which is what netstack does when the congestion control of
// a connection is set. Else it would keep the threshold of two segments that it has after two
// timeouts of one segment (RFC 5681 section 3.1 has it hold the first), and take a round trip for
// each further segment.
func (s *Stack) restartSlowStart() {
	for _, ep := range s.net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) != tcp.StateEstablished {
			continue
		}
		var info tcpip.TCPInfoOption
		var control tcpip.CongestionControlOption
		if c.GetSockOpt(&info) == nil && info.CcState == tcpip.RTORecovery &&
			c.GetSockOpt(&control) == nil {
			_ = c.SetSockOpt(&control) // one that it has cannot be unknown
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
