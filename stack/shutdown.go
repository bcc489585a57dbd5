package stack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// flushPoll is how often Shutdown looks whether closing connections have delivered their data.
const flushPoll = 2 * time.Millisecond

// peerTime is how long Shutdown waits for the FINs of peers that have all that was written. One
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
	for s.anyIn(matches) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return nil
		case <-tick.C:
			tick.Reset(flushPoll)
		}
	}
	return nil
}

// anyIn says whether a connection is in a state that matches.
func (s *Stack) anyIn(matches func(tcpip.Endpoint) bool) bool {
	for _, ep := range s.net.RegisteredEndpoints() {
		if ep, ok := ep.(*tcp.Endpoint); ok && matches(ep) {
			return true
		}
	}
	return false
}

// unflushed are the states in which data or our FIN may be on its way.
func unflushed(ep tcpip.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
		return true
	}
	return false
}

// closedAlone says whether the peer has all data and our FIN, and has not sent its own.
func closedAlone(ep tcpip.Endpoint) bool {
	return tcp.EndpointState(ep.State()) == tcp.StateFinWait2
}
