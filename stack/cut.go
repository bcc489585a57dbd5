package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Cut are TCP connections that the stack has sent a reset, each counted once.
type Cut struct {
	// Reset are connections that it had: closed with data that was not read, or that came
	// afterwards; aborted, see [TCPConn.SetLinger]; whose peer did not take what was left, see
	// [TCPOptions].OrphanTimeout; not accepted; open at the end of the stack.
	Reset int
	// Unknown are those that the stack did not have, or no more, when something came for them: a
	// handshake that only the client took for ended, or a stranger's segment. Beyond 65,536 in all
	// they are not counted.
	Unknown int
}

// Cut says which connections were cut since [Stack.Drain] was called, also after the end of the
// stack; then it has those that its end has cut. Refused clients are not among them, nor
// connections that the kernel has completed, see [Config.Host]. On a link given to [New] all is 0.
func (s *Stack) Cut() Cut {
	if s.link == nil {
		return Cut{}
	}
	r := s.link.Resets()
	return Cut{Reset: r.Known, Unknown: r.Unknown}
}

// abortOpen resets the connections that are not over. Of others the peer has got all and
// acknowledged our FIN: a reset could only cost it what it has not read yet.
func (s *Stack) abortOpen() {
	eps := s.net.RegisteredEndpoints()
	held := s.conns.streams()
	for _, ep := range eps {
		if !delivered(ep, held) {
			ep.Abort()
		}
	}
}

// delivered says whether a TCP connection that the program has closed waits for the peer's FIN, or
// for nothing but the time. Those that the program holds are held.
func delivered(e gstack.TransportEndpoint, held map[tcpip.Endpoint]*TCPConn) bool {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return false
	}
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateTimeWait:
		return true
	case tcp.StateFinWait2:
		return held[ep] == nil
	}
	return false
}
