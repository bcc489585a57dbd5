package httpd

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Values of the fields of Config that are 0.
const (
	DefaultMaxBody = 256 << 20
	DefaultMinRate = 16 << 10
	DefaultGrace   = 30 * time.Second
)

const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	bodyTimeout    = 10 * time.Second // for a request's body that no handler reads
	maxHeaderBytes = 64 << 10
)

// Config says what to serve. The zero value serves /-/healthz only.
type Config struct {
	// Root gives the directory of static files; empty: none. Nothing outside it is reachable, not
	// even by symbolic links, and only regular files are served.
	Root string
	// DotFiles serves files and directories of Root whose names begin with a dot. Without it only
	// those below /.well-known/ are served (RFC 8615).
	DotFiles bool
	// DebugEndpoints serves /-/status, /-/status.json, /-/bytes/N, /-/echo and listings of
	// directories: they expose much information, or cost much, and are for tests and
	// demonstrations.
	DebugEndpoints bool
	// Status returns facts for the status page, at each request, from many goroutines;
	// encoding/json must be able to encode its result. Nil: the server's own counters only.
	Status func() any
	// Checks are those of /-/healthz in addition to the server's own.
	Checks []Check
	// MaxBody gives the most that /-/echo accepts and /-/bytes sends, in bytes; 0 means
	// DefaultMaxBody.
	MaxBody int64
	// MaxConns gives the most connections that may be open. One more replaces the one that has been
	// longest without a request; if all have one, the new one is closed. 0: as many as fit into
	// half of the memory of the machine, its control group or GOMEMLIMIT, at 1 MiB each, from 256
	// to 65536.
	MaxConns int
	// MinRate gives the floor of a transfer, in bytes per second: a peer may be slower, or stop,
	// for Grace in total; progress above the floor restores that time. Then the connection is
	// closed. 0 means DefaultMinRate, and DefaultGrace or the time that 64 KiB take at MinRate,
	// whichever is longer. Grace must allow 64 KiB at MinRate.
	MinRate int64
	Grace   time.Duration
	// Logger gets errors of broken connections and panicking handlers; nil logs nothing.
	Logger *slog.Logger
	// Clock gives the time that the server goes by, which has to be that of its connections; the
	// zero value is the system's. For simulations: the limits that net/http keeps itself, on
	// headers and idle connections, are always times of the system's.
	Clock clock.Clock
}

// Server serves one Config on any number of listeners. All methods may be called from any
// goroutine.
type Server struct {
	cfg      Config
	root     *os.Root // nil without static files
	http     http.Server
	counters counters
	table    table
	started  time.Time
	draining atomic.Bool // answers are the last of their connections

	mu        sync.Mutex
	listeners map[net.Listener]struct{} // guarded by mu
}

// New opens Config.Root and prepares the server. The caller ends it with Shutdown or Close, even if
// it never served.
func New(cfg Config) (*Server, error) {
	if err := cfg.fillDefaults(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, started: cfg.Clock.Now()}
	s.table.clock = cfg.Clock
	s.table.pieces.New = func() any { return new([piece]byte) }
	s.table.max, s.table.open = cfg.MaxConns, map[*conn]*list.Element{}
	if cfg.Root != "" {
		root, err := os.OpenRoot(cfg.Root)
		if err != nil {
			return nil, fmt.Errorf("open directory of static files: %w", err)
		}
		s.root = root
	}
	s.http = http.Server{
		Handler:           s.sayingLast(s.newRoutes()),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         s.table.onConnState,
		ErrorLog:          errorLog(cfg.Logger),
	}
	return s, nil
}

// fillDefaults checks the numbers and fills in those that are 0.
func (cfg *Config) fillDefaults() error {
	switch {
	case cfg.MaxBody < 0:
		return fmt.Errorf("largest body of %d bytes is negative", cfg.MaxBody)
	case cfg.MaxConns < 0:
		return fmt.Errorf("%d connections at most: the number is negative", cfg.MaxConns)
	case cfg.MinRate < 0 || cfg.Grace < 0:
		return fmt.Errorf("a floor of %d bytes per second after %v: one is negative", cfg.MinRate,
			cfg.Grace)
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, DefaultMaxBody)
	cfg.MinRate = cmp.Or(cfg.MinRate, DefaultMinRate)
	cfg.Grace = cmp.Or(cfg.Grace, max(DefaultGrace, timeFor(piece, cfg.MinRate)))
	if cfg.MaxConns == 0 {
		cfg.MaxConns = connsForMemory()
	}
	if need := timeFor(piece, cfg.MinRate); cfg.Grace < need {
		return fmt.Errorf("a grace time of %v: at %d bytes per second it is %v at least", cfg.Grace,
			cfg.MinRate, need)
	}
	return nil
}

func errorLog(l *slog.Logger) *log.Logger {
	if l == nil {
		return log.New(io.Discard, "", 0)
	}
	return slog.NewLogLogger(l.Handler(), slog.LevelWarn)
}

// Serve answers connections of ln until Shutdown or Close, and then returns nil; any other end is
// returned as an error. It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.Serve(s.trackListener(ln))
	if errors.Is(err, http.ErrServerClosed) || s.draining.Load() {
		return nil
	}
	return fmt.Errorf("serve HTTP on %v: %w", ln.Addr(), err)
}

// Shutdown closes the listeners, lets requests in progress finish, and ends idle connections: at
// their next answer, or two seconds later, five if they have had no request, as one may be on its
// way. What comes for them afterwards is read for two seconds, not answered, and counted: a request
// gets no reset. When ctx ends first it aborts the rest and returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.table.releaseAll() // that many end from now on must not reset those whose data is in flight
	s.closeListeners()
	s.awaitRequests(ctx)
	err := s.http.Shutdown(ctx)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return s.closeRoot()
}

// Close ends everything at once. It may be called again.
func (s *Server) Close() error {
	s.table.releaseAll()
	return errors.Join(s.http.Close(), s.closeRoot())
}

func (s *Server) closeRoot() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

const (
	// lastRequests says how long a connection without a request may still send one after Shutdown:
	// one that is on its way. Its answer says that the connection ends. One that has had none at
	// all has firstRequests.
	lastRequests  = 2 * time.Second
	firstRequests = 5 * time.Second
	// lastPoll says how often it is looked whether there still are connections.
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

// trackListener records a listener that Shutdown has to close.
func (s *Server) trackListener(ln net.Listener) listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners == nil {
		s.listeners = map[net.Listener]struct{}{}
	}
	s.listeners[ln] = struct{}{}
	return listener{ln, s}
}

// closeListeners closes the listeners, and has each answer from now on be its connection's last.
func (s *Server) closeListeners() {
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
	for t.connCount() > 0 || t.parting.Load() > 0 {
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

// sayingLast returns h, with answers that say when they are the connection's last.
func (s *Server) sayingLast(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// Check describes a check that /-/healthz runs in addition to the server's own. Run is called at
// each request, from many goroutines, and returns at once; its error is part of the answer.
type Check struct {
	Name string // such as "device"
	Run  func() error
}

// serveHealth answers 200 and "ok", or 503 and "failing", and then one line for each check.
func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	var lines strings.Builder
	verdict, status := "ok", http.StatusOK
	fmt.Fprintf(&lines, "connections: %d of %d\n", s.table.connCount(), s.table.max)
	checks := s.cfg.Checks
	if s.root != nil {
		checks = append([]Check{{"root directory", s.checkRoot}}, checks...)
	}
	for _, c := range checks {
		outcome := "ok"
		if err := c.Run(); err != nil {
			outcome = err.Error()
			verdict, status = "failing", http.StatusServiceUnavailable
		}
		fmt.Fprintf(&lines, "%s: %s\n", c.Name, outcome)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s\n%s", verdict, lines.String())
}

func (s *Server) checkRoot() error {
	_, err := s.root.Stat(".")
	return err
}
