package stack

import (
	"iter"
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// openConns keeps the connections and UDP sockets that the program holds. Its mutex is held for an
// entry or a lookup, and for a copy of all connections, which are in a list: a table would take
// three times the memory.
type openConns struct {
	net         *gstack.Stack
	failedDials atomic.Uint64
	mu          sync.Mutex // guards all, and the places of the connections in the list
	first       *TCPConn
	count       int
	udp         map[tcpip.Endpoint]*UDPConn

	starts slowStarts
	paced  pacedConns
}

// abortAll ends all TCP connections, listeners stay. Their resets are lost.
func (o *openConns) abortAll() {
	for ep, state := range o.endpoints() {
		if state != tcp.StateListen {
			ep.Abort()
		}
	}
}

// anyIn says whether a connection is in a state that matches.
func (o *openConns) anyIn(matches func(tcpip.Endpoint) bool) bool {
	for ep := range o.endpoints() {
		if matches(ep) {
			return true
		}
	}
	return false
}

// abortOpen resets the connections that are not over. Of others the peer has got all and
// acknowledged our FIN: a reset could only cost it what it has not read yet.
func (o *openConns) abortOpen() {
	eps := o.net.RegisteredEndpoints()
	held := o.streams()
	for _, ep := range eps {
		if !delivered(ep, held) {
			ep.Abort()
		}
	}
}

// endpoints yields the TCP endpoints that netstack has at the time of the call, and their states.
func (o *openConns) endpoints() iter.Seq2[*tcp.Endpoint, tcp.EndpointState] {
	all := o.net.RegisteredEndpoints()
	return func(yield func(*tcp.Endpoint, tcp.EndpointState) bool) {
		for _, ep := range all {
			if t, ok := ep.(*tcp.Endpoint); ok && !yield(t, tcp.EndpointState(t.State())) {
				return
			}
		}
	}
}

func (o *openConns) add(c *TCPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.next = o.first; c.next != nil {
		c.next.prev = c
	}
	o.first = c
	o.count++
}

func (o *openConns) addUDP(c *UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.udp == nil {
		o.udp = map[tcpip.Endpoint]*UDPConn{}
	}
	o.udp[c.ep] = c
}

// sharing lists the sockets with the port of c, and c itself.
func (o *openConns) sharing(c *UDPConn) (all []*UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, other := range o.udp {
		if other.local.Port == c.local.Port {
			all = append(all, other)
		}
	}
	return all
}

// peers returns the addresses of own, and those of connections and connected UDP sockets. One that
// has only asked for a connection is none.
func (o *openConns) peers(own []netip.Prefix) (all []netip.Addr) {
	for _, p := range own {
		all = append(all, p.Addr())
	}
	for _, ep := range o.net.RegisteredEndpoints() {
		has, ok := ep.(tcpip.Endpoint)
		if !ok {
			continue
		}
		if t, ok := ep.(*tcp.Endpoint); ok {
			switch tcp.EndpointState(t.State()) {
			case tcp.StateListen, tcp.StateSynRecv, tcp.StateClose, tcp.StateError:
				continue
			}
		}
		info, ok := has.Info().(*gstack.TransportEndpointInfo)
		if !ok || info.ID.RemotePort == 0 {
			continue
		}
		if a, ok := netip.AddrFromSlice(info.ID.RemoteAddress.AsSlice()); ok {
			all = append(all, a)
		}
	}
	return all
}

func (o *openConns) remove(c *TCPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.next != nil {
		c.next.prev = c.prev
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		o.first = c.next
	}
	c.next, c.prev = nil, nil
	o.count--
}

// streams returns the connections by endpoint, as of now.
func (o *openConns) streams() map[tcpip.Endpoint]*TCPConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[tcpip.Endpoint]*TCPConn, o.count)
	for c := o.first; c != nil; c = c.next {
		all[c.ep] = c
	}
	return all
}

func (o *openConns) removeUDP(c *UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.udp, c.ep)
}

// socket returns the UDP socket of an endpoint, or nil.
func (o *openConns) socket(ep tcpip.Endpoint) *UDPConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.udp[ep]
}

// wakeWriters makes every write in progress try again.
func (o *openConns) wakeWriters() {
	for _, c := range o.streams() {
		c.wr.NotifyEvent(waiter.EventOut)
	}
}

// restartSlowStart makes connections whose retransmission timer has expired begin as on a new path:
// with the initial window and threshold, which is what netstack does when the congestion control of
// a connection is set. Else it would keep the threshold of two segments that it has after two
// timeouts of one segment (RFC 5681 section 3.1 has it hold the first), and take a round trip for
// each further segment.
func (o *openConns) restartSlowStart() {
	for ep, state := range o.endpoints() {
		var info tcpip.TCPInfoOption
		if state == tcp.StateEstablished && ep.GetSockOpt(&info) == nil &&
			info.CcState == tcpip.RTORecovery {
			setControlAnew(ep)
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
