package iperf3d

import (
	"errors"
	"net"
	"time"
)

// One test at a time. A client that is idle for maxIdle gives way to the next.
const (
	maxIdle          = 2 * time.Second        // of silence, and the test is the next client's
	progressInterval = 250 * time.Millisecond // between looks at whether the streams move
	admitInterval    = 50 * time.Millisecond  // between looks of a client that waits
)

var errIdle = errors.New("the client said nothing while another one waited")

// markActive notes that the client did something.
func (s *session) markActive() { s.lastActive.Store(time.Now().UnixNano()) }

// idleTime is how long the client has done nothing beyond what the rate it asked for explains.
func (s *session) idleTime() time.Duration {
	d := time.Since(time.Unix(0, s.lastActive.Load()))
	if s.running.Load() {
		d -= s.params.pause()
	}
	return d
}

// admit returns the test under way that a connection with cookie k belongs to, or a new one that is
// the connection's (mine); nil when the server is busy. While the test under way is at a step of
// the protocol, or its streams stand still, the connection waits: the client may be gone already,
// and if it is silent for maxIdle the test is ended.
func (s *Server) admit(c net.Conn, k cookie) (t *session, mine bool) {
	look := time.NewTicker(admitInterval)
	defer look.Stop()
	for {
		t, mine, wait := s.tryAdmit(c, k)
		if !wait {
			return t, mine
		}
		select {
		case <-t.over:
		case <-look.C:
		}
	}
}

// tryAdmit is admit without waiting; it says whether to wait.
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
