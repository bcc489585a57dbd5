package httpd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// DefaultMaxBody is the largest body /-/echo takes when Config.MaxBody is 0, in bytes.
const DefaultMaxBody = 256 << 20

const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	requestTimeout = time.Minute // for a transfer of no size; larger ones get more, see timeFor
	slowestRate    = 16 << 10    // bytes per second below which a transfer is given up
	maxHeaderBytes = 64 << 10
)

// Config says what to serve. The zero value serves the /-/ pages only.
type Config struct {
	// Root is the directory of static files; empty: none. Nothing outside it is reachable, symbolic links included.
	Root string
	// Status is asked for facts to show on the status page, at each request, from many goroutines; its answer must be
	// something encoding/json can encode. Nil: the server's own counters only.
	Status func() any
	// MaxBody is the largest body /-/echo takes, in bytes; 0 means DefaultMaxBody.
	MaxBody int64
	// Logger hears of broken connections and panicking handlers; nil is silence.
	Logger *slog.Logger
}

// Server serves one Config on any number of listeners. All methods may be called from any goroutine.
type Server struct {
	cfg      Config
	root     *os.Root // nil without static files
	http     http.Server
	counters counters
	started  time.Time
}

// New opens Config.Root and prepares the server. The caller ends it with Shutdown or Close, even if it never served.
func New(cfg Config) (*Server, error) {
	if cfg.MaxBody < 0 {
		return nil, fmt.Errorf("largest body of %d bytes is negative", cfg.MaxBody)
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = DefaultMaxBody
	}
	s := &Server{cfg: cfg, started: time.Now()}
	if cfg.Root != "" {
		root, err := os.OpenRoot(cfg.Root)
		if err != nil {
			return nil, fmt.Errorf("open directory of static files: %w", err)
		}
		s.root = root
	}
	s.http = http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         s.counters.conn,
		ErrorLog:          errorLog(cfg.Logger),
	}
	return s, nil
}

func errorLog(l *slog.Logger) *log.Logger {
	if l == nil {
		return log.New(io.Discard, "", 0)
	}
	return slog.NewLogLogger(l.Handler(), slog.LevelWarn)
}

// Serve answers connections of ln until Shutdown or Close, and then returns nil; any other end is returned as an error.
// It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve HTTP on %v: %w", ln.Addr(), err)
}

// Shutdown closes the listeners, lets requests under way finish, and closes idle connections. When ctx ends first it
// cuts the rest off and returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return s.closeRoot()
}

// Close cuts everything off at once. It may be called again.
func (s *Server) Close() error {
	return errors.Join(s.http.Close(), s.closeRoot())
}

func (s *Server) closeRoot() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

// timeFor is how long a transfer of n bytes may take; n < 0 counts as none.
func timeFor(n int64) time.Duration {
	const century = 100 * 365 * 24 * 3600 // seconds: far, and far from overflow
	return requestTimeout + time.Duration(min(max(n, 0)/slowestRate, century))*time.Second
}
