package stack

import (
	"context"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// drainTime is how long Drain waits for handshakes at most: a segment of one is lost, and sent
	// again after a second.
	drainTime = 3 * time.Second
	// drainPoll is how often Drain looks.
	drainPoll = 5 * time.Millisecond
)

// Drain begins the end of a server: no connection begins any more, and it returns once the program
// has accepted those that have, so that closing the listeners then resets none; after 3 s at the
// latest, or when ctx is done, with its error. Handshakes of clients that come meanwhile get no
// answer and are tried again by the client a second later, when the port is closed, or another
// server's. [Stack.Draining] is true from then on. A server ends without a loss like this:
//
//	st.Drain(ctx)       // the program goes on to accept
//	server.Shutdown(ctx) // closes the listeners; requests under way are answered
//	st.Shutdown(ctx)     // what was written arrives
//
// On a link given to [New] connections do begin as long as there is a listener.
func (s *Stack) Drain(ctx context.Context) error {
	s.draining.Store(true)
	if s.link != nil {
		s.link.Refuse()
	}
	if s.host != nil {
		if err := s.host.refuse(); err != nil {
			s.log.Warn("refuse connections of the kernel", "interface", s.name, "error", err)
		}
	}
	limit := s.clock.NewTimer(drainTime)
	defer limit.Stop()
	for seen := true; seen; { // and once more: Accept may not have returned yet
		seen = s.unaccepted()
		if err := s.clock.Sleep(ctx, drainPoll); err != nil {
			return err
		}
		select {
		case <-limit.C:
			return nil
		case <-s.ended:
			return nil
		default:
		}
	}
	return nil
}

// Draining says whether Drain was called: the stack should get no new clients.
func (s *Stack) Draining() bool { return s.draining.Load() }

// unaccepted says whether something has come that the program has not got: a connection, or, once
// another process or the kernel gets new clients, a datagram.
func (s *Stack) unaccepted() bool {
	eps := s.net.RegisteredEndpoints()
	held := s.conns.streams()
	for _, ep := range eps {
		ep, ok := ep.(*tcp.Endpoint)
		if !ok {
			continue
		}
		switch tcp.EndpointState(ep.State()) {
		case tcp.StateSynRecv:
			return true
		case tcp.StateEstablished, tcp.StateCloseWait:
			if held[ep] == nil {
				return true
			}
		}
	}
	given := s.other.Load() != nil || s.kernel.Load() != nil
	return given && s.unread() || s.host != nil && s.host.unaccepted()
}

// unread says whether a UDP socket has datagrams that wait.
func (s *Stack) unread() bool {
	for _, so := range s.Sockets() {
		if so.Network == "udp" && so.RecvQ > 0 {
			return true
		}
	}
	return false
}

// Conns is the number of TCP connections that are not over for the program, which has not closed
// them, or for the peer, who has not got all.
func (s *Stack) Conns() int {
	eps := s.net.RegisteredEndpoints()
	held := s.conns.streams()
	n := len(held)
	for _, ep := range eps {
		if ep, ok := ep.(*tcp.Endpoint); ok && held[ep] == nil {
			switch tcp.EndpointState(ep.State()) {
			case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateSynRecv, tcp.StateFinWait1,
				tcp.StateClosing, tcp.StateLastAck:
				n++
			}
		}
	}
	return n
}
