package iperf3d

import (
	"errors"
	"net"
	"time"
)

// One test at a time. A client that is idle for maxIdle loses its turn to the next.
const (
	maxIdle          = 2 * time.Second        // of silence; a waiting client then gets the turn
	progressInterval = 250 * time.Millisecond // between checks whether the streams move
	admitInterval    = 50 * time.Millisecond  // between checks of a waiting client
)

var errIdle = errors.New("the client said nothing while another one waited")

// markActive records that the client did something.
func (s *session) markActive() { s.lastActive.Store(s.serverClock().Now().UnixNano()) }

// idleTime returns how long the client has done nothing, beyond the pauses of its requested rate.
func (s *session) idleTime() time.Duration {
	d := s.serverClock().Since(time.Unix(0, s.lastActive.Load()))
	if s.running.Load() {
		d -= s.params.writePause()
	}
	return d
}

// admitConn returns the current test if a connection with cookie k belongs to it, or a new one that
// belongs to the connection (mine); nil when the server is busy. While the current test is at a
// step of the protocol, or its streams do not move, the connection waits: its client may have
// disconnected, and if it is silent for maxIdle the test is ended.
func (s *Server) admitConn(c net.Conn, k cookie) (t *session, mine bool) {
	look := s.clock.NewTimer(admitInterval)
	defer look.Stop()
	for {
		t, mine, wait := s.tryAdmit(c, k)
		if !wait {
			return t, mine
		}
		select {
		case <-t.over:
		case <-look.C:
			look.Reset(admitInterval)
		}
	}
}

// tryAdmit does what admitConn does without waiting, and reports whether to wait.
func (s *Server) tryAdmit(c net.Conn, k cookie) (t *session, mine, wait bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cur := s.current
	switch {
	case s.ctx.Err() != nil:
		return nil, false, false
	case cur == nil:
		s.current = newSession(s, c, k)
		return s.current, true, false
	case cur.cookie == k:
		return cur, false, false
	case cur.idleTime() >= maxIdle:
		cur.cancel(errIdle)
	case cur.running.Load() && cur.idleTime() < 2*progressInterval:
		return nil, false, false
	}
	return cur, false, true
}
