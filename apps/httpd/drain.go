package httpd

import (
	"context"
	"net"
	"net/http"
	"time"
)

const (
	// lastRequests is how long a connection without a request may still send one after Shutdown:
	// one that is on its way. Its answer says that the connection ends. One that has had none at
	// all has firstRequests.
	lastRequests  = 2 * time.Second
	firstRequests = 5 * time.Second
	// lastPoll is how often it is looked whether there still are connections.
	lastPoll = 10 * time.Millisecond
)

// Close implements net.Listener. It may be called again: net/http does so.
func (l listener) Close() error {
	l.s.mu.Lock()
	_, open := l.s.listeners[l.Listener]
	delete(l.s.listeners, l.Listener)
	l.s.mu.Unlock()
	if !open {
		return nil
	}
	return l.Listener.Close()
}

// track records a listener that Shutdown has to close.
func (s *Server) track(ln net.Listener) listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners == nil {
		s.listeners = map[net.Listener]struct{}{}
	}
	s.listeners[ln] = struct{}{}
	return listener{ln, s}
}

// refuse closes the listeners, and has each answer from now on be its connection's last.
func (s *Server) refuse() {
	s.draining.Store(true)
	s.mu.Lock()
	all := s.listeners
	s.listeners = nil
	s.mu.Unlock()
	for ln := range all {
		ln.Close()
	}
}

// awaitRequests returns when no connection is left, or ctx is done. Those without a request are
// ended when their time is over, in which a server that gets no processor cannot read: of longer
// breaks than between two looks the rest does not count.
func (s *Server) awaitRequests(ctx context.Context) {
	clock, t, passed := s.cfg.Clock, &s.table, time.Duration(0)
	for t.size() > 0 || t.parting.Load() > 0 {
		if passed >= lastRequests {
			t.endQuiet(func(c *conn) bool { return !c.used && passed < firstRequests })
		}
		before := clock.Now()
		if clock.Sleep(ctx, lastPoll) != nil {
			return
		}
		passed += min(clock.Since(before), 2*lastPoll)
	}
}

// sayingLast is h, with answers that say when they are the connection's last.
func (s *Server) sayingLast(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}
