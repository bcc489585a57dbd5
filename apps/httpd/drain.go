package httpd

import (
	"context"
	"net"
	"net/http"
	"time"
)

const (
	// lastRequests is how long a connection without a request may still send one after Shutdown:
	// one that is on its way. Its answer says that the connection ends.
	lastRequests = 2 * time.Second
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

// awaitRequests returns when no connection is left, or lastRequests later: those without a request
// may be closed then.
func (s *Server) awaitRequests(ctx context.Context) {
	clock := s.cfg.Clock
	for end := clock.Now().Add(lastRequests); s.table.size() > 0 && clock.Now().Before(end); {
		if clock.Sleep(ctx, lastPoll) != nil {
			return
		}
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
