package stack

import (
	"context"
	"fmt"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// drainTime is how long Drain waits at most while nothing comes of it: two segments of a
	// handshake are lost, and sent again after one and three seconds.
	drainTime = 4 * time.Second
	// drainPoll is how often Drain looks, and drainLooks how often in a row nothing must be left: a
	// SYN may still be on its way through netstack, and Accept may not have returned yet.
	drainPoll  = 5 * time.Millisecond
	drainLooks = 10
)

// DrainError is what [Stack.Drain] has left. It wraps the error of its context, or else
// [os.ErrDeadlineExceeded].
type DrainError struct {
	// Handshakes are those that had begun, but not ended. A client whose last segment got lost
	// takes its one for a connection.
	Handshakes int
	// Unaccepted are connections that the program has not accepted; closing the listener resets
	// them. Those of the kernel, see [Config.Host], are not among them, nor are datagrams, although
	// Drain waits for these, too.
	Unaccepted int

	err error
}

func (e *DrainError) Error() string {
	return fmt.Sprintf("drain: %d handshakes and %d connections to accept are left: %v",
		e.Handshakes, e.Unaccepted, e.err)
}

func (e *DrainError) Unwrap() error { return e.err }

// Drain begins the end of a server: no connection begins any more, and it returns once the program
// has accepted those that have, so that closing the listeners then resets none. It returns a
// [*DrainError] when ctx is done, or when for 4 s no handshake has ended and no connection was
// accepted. Handshakes of clients that come meanwhile get no answer and are tried again by the
// client a second later, when the port is closed, or another server's. [Stack.Draining] is true
// from then on, and [Stack.Cut] says which connections are reset. A server ends without a loss like
// this:
//
//	st.Drain(ctx)       // the program goes on to accept
//	server.Shutdown(ctx) // closes the listeners; requests under way are answered
//	st.Shutdown(ctx)     // what was written arrives
//
// On a link given to [New] connections do begin as long as there is a listener.
func (s *Stack) Drain(ctx context.Context) error {
	s.draining.Store(true)
	if s.link != nil {
		s.link.NoteResets()
		s.link.Refuse()
	}
	if s.host != nil {
		if err := s.host.refuse(); err != nil {
			s.log.Warn("refuse connections of the kernel", "interface", s.name, "error", err)
		}
	}
	return s.awaitAccepted(ctx)
}

// awaitAccepted returns when nothing is left, or when drainTime has passed since something came of
// it.
func (s *Stack) awaitAccepted(ctx context.Context) error {
	before, limit := s.progress(new(DrainError)), s.clock.Now().Add(drainTime)
	for looks := 0; looks < drainLooks; looks++ {
		left, more := s.left()
		if more {
			looks = -1
		}
		if now := s.progress(left); now != before {
			before, limit = now, s.clock.Now().Add(drainTime)
		}
		if err := s.clock.Sleep(ctx, drainPoll); err != nil {
			left.err = err
			return left
		}
		switch {
		case s.closed.Load():
			return nil
		case more && s.clock.Now().After(limit):
			left.err = os.ErrDeadlineExceeded
			return left
		}
	}
	return nil
}

// progress changes when a handshake has ended or a connection was accepted.
type progress struct {
	established uint64
	unaccepted  int
}

func (s *Stack) progress(left *DrainError) progress {
	return progress{s.net.Stats().TCP.PassiveConnectionOpenings.Value(), left.Unaccepted}
}

// Draining says whether Drain was called: the stack should get no new clients.
func (s *Stack) Draining() bool { return s.draining.Load() }

// left is what has come that the program has not got: a connection, or, once another process or the
// kernel gets new clients, a datagram.
func (s *Stack) left() (left *DrainError, more bool) {
	left = new(DrainError)
	eps := s.net.RegisteredEndpoints()
	held := s.conns.streams()
	for _, ep := range eps {
		ep, ok := ep.(*tcp.Endpoint)
		if !ok {
			continue
		}
		switch tcp.EndpointState(ep.State()) {
		case tcp.StateSynRecv:
			left.Handshakes++
		case tcp.StateEstablished, tcp.StateCloseWait:
			if held[ep] == nil {
				left.Unaccepted++
			}
		}
	}
	given := s.other.Load() != nil || s.kernel.Load() != nil
	return left, left.Handshakes+left.Unaccepted > 0 || given && s.unread() ||
		s.host != nil && s.host.unaccepted()
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
