package iperf3d

import (
	"errors"
	"net"
	"time"
)

// Turns: one test at a time, and a client that says nothing keeps nobody waiting.
const (
	silentTime = 2 * time.Second        // of silence, and the test is the next client's
	lookTime   = 250 * time.Millisecond // between looks at whether the streams move
	waitTime   = 50 * time.Millisecond  // between looks of a client that waits
)

var errSilent = errors.New("the client said nothing while another one waited")

// hear notes that the client did something.
func (s *session) hear() { s.heard.Store(time.Now().UnixNano()) }

// silence is how long the client has done nothing beyond what the rate it asked for explains.
func (s *session) silence() time.Duration {
	d := time.Since(time.Unix(0, s.heard.Load()))
	if s.running.Load() {
		d -= s.params.pause()
	}
	return d
}

// admit returns the test under way that a connection with cookie k belongs to, or a new one that is
// the connection's (mine); nil when the server is busy. While the test under way is at a step of
// the protocol, or its streams stand still, the connection waits: the client may be gone already,
// and if it is silent for silentTime the test is ended.
func (s *Server) admit(c net.Conn, k cookie) (t *session, mine bool) {
	look := time.NewTicker(waitTime)
	defer look.Stop()
	for {
		t, mine, wait := s.turn(c, k)
		if !wait {
			return t, mine
		}
		select {
		case <-t.gone:
		case <-look.C:
		}
	}
}

// turn is admit without waiting; it says whether to wait.
func (s *Server) turn(c net.Conn, k cookie) (t *session, mine, wait bool) {
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
	case cur.silence() >= silentTime:
		cur.cancel(errSilent)
	case cur.running.Load() && cur.silence() < 2*lookTime:
		return nil, false, false
	}
	return cur, false, true
}
