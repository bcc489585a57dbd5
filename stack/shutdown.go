package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// peerTime says how long Shutdown waits for the FINs of peers that have all that was written. One
// that comes after Close is answered by nobody, or on the host's own address by Linux with a RST.
const peerTime = time.Second

// Shutdown waits until every connection that the program has closed has delivered what was written
// to it and had its FIN acknowledged, or until ctx is done, and then calls Close. Connections still
// open do not hold it up; close them first, for example with http.Server.Shutdown. For peers that
// have everything, but have not closed their end, it waits a second at most.
func (s *Stack) Shutdown(ctx context.Context) error {
	if err := s.awaitNone(ctx, unflushed); err != nil {
		return errors.Join(fmt.Errorf("wait for closed connections to deliver their data: %w",
			err), s.Close())
	}
	until := s.clock.Now().Add(peerTime)
	_ = s.awaitNone(ctx, func(ep tcpip.Endpoint) bool { // nothing is lost
		return closedAlone(ep) && s.clock.Now().Before(until)
	})
	return s.Close()
}

// awaitNone waits until the stack has ended or no connection is in a state that matches. Its error
// is ctx's.
func (s *Stack) awaitNone(ctx context.Context, matches func(tcpip.Endpoint) bool) error {
	tick := s.clock.NewTimer(flushPoll)
	defer tick.Stop()
	for s.conns.anyIn(matches) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.life.ended:
			return nil
		case <-tick.C:
			tick.Reset(flushPoll)
		}
	}
	return nil
}

// closedAlone says whether the peer has all data and our FIN, and has not sent its own.
func closedAlone(ep tcpip.Endpoint) bool {
	return tcp.EndpointState(ep.State()) == tcp.StateFinWait2
}

const (
	// drainTime says how long Drain waits at most while nothing comes of it: two segments of a
	// handshake are lost, and sent again after one and three seconds.
	drainTime = 4 * time.Second
	// drainPoll says how often Drain looks, and drainLooks how often in a row nothing must be
	// left: a SYN may still be on its way through netstack, and Accept may not have returned yet.
	drainPoll  = 5 * time.Millisecond
	drainLooks = 10
)

// DrainError holds what [Stack.Drain] has left. It wraps the error of its context, or else
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
	s.life.draining.Store(true)
	if s.link != nil {
		s.link.NoteResets()
		s.link.Refuse()
	}
	if s.host != nil {
		if err := s.host.Refuse(); err != nil {
			s.log.Warn("refuse connections of the kernel", "interface", s.name, "error", err)
		}
	}
	return s.awaitAccepted(ctx)
}

// awaitAccepted returns when nothing is left, or when drainTime has passed since something came of
// it.
func (s *Stack) awaitAccepted(ctx context.Context) error {
	before, limit := drainProgress(s.net, new(DrainError)), s.clock.Now().Add(drainTime)
	for looks := 0; looks < drainLooks; looks++ {
		left, more := s.left()
		if more {
			looks = -1
		}
		if now := drainProgress(s.net, left); now != before {
			before, limit = now, s.clock.Now().Add(drainTime)
		}
		if err := s.clock.Sleep(ctx, drainPoll); err != nil {
			left.err = err
			return left
		}
		switch {
		case s.life.closed.Load():
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

func drainProgress(g *gstack.Stack, left *DrainError) progress {
	return progress{g.Stats().TCP.PassiveConnectionOpenings.Value(), left.Unaccepted}
}

// Draining says whether Drain was called: the stack should get no new clients.
func (s *Stack) Draining() bool { return s.life.draining.Load() }

// left returns what has come that the program has not got: a connection, or, once another process
// or the kernel gets new clients, a datagram.
func (s *Stack) left() (left *DrainError, more bool) {
	left = new(DrainError)
	eps := s.conns.endpoints()
	held := s.conns.streams()
	for ep, state := range eps {
		switch state {
		case tcp.StateSynRecv:
			left.Handshakes++
		case tcp.StateEstablished, tcp.StateCloseWait:
			if held[ep] == nil {
				left.Unaccepted++
			}
		}
	}
	return left, left.Handshakes+left.Unaccepted > 0 ||
		s.handover.HasGiven() && hasUnread(s.Sockets()) || s.host != nil && s.host.Unaccepted()
}

// hasUnread reports whether a UDP socket has datagrams that wait.
func hasUnread(all []Socket) bool {
	for _, so := range all {
		if so.Network == "udp" && so.RecvQ > 0 {
			return true
		}
	}
	return false
}

// Conns returns the number of TCP connections that are not over for the program, which has not
// closed them, or for the peer, who has not got all.
func (s *Stack) Conns() int {
	eps := s.conns.endpoints()
	held := s.conns.streams()
	n := len(held)
	for ep, state := range eps {
		if held[ep] != nil {
			continue
		}
		switch state {
		case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateSynRecv, tcp.StateFinWait1,
			tcp.StateClosing, tcp.StateLastAck:
			n++
		}
	}
	return n
}

// Cut are TCP connections that the stack has sent a reset, each counted once.
type Cut struct {
	// Reset are connections that it had: closed with data that was not read, or that came
	// afterwards; aborted, see [TCPConn.SetLinger]; whose peer did not take what was left, see
	// [TCPOptions].OrphanTimeout; not accepted; open at the end of the stack.
	Reset int
	// Unknown are those that the stack did not have, or no more although their peers had not ended
	// them, when something came for them: a handshake that only the client took for ended, or a
	// stranger's segment. Beyond 65,536 in all they are not counted.
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
