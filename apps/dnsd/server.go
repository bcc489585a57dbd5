package dnsd

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

const (
	defaultForwardTimeout = 2 * time.Second
	maxTCPConns           = 512
	tcpIdle               = 30 * time.Second
	tcpBusyIdle           = 2 * time.Second // when more than half of the connections are in use
)

// ErrClosed is returned by ServeUDP and ServeTCP when Shutdown was called before.
var ErrClosed = errors.New("DNS server is shut down")

// Zone names one zone file.
type Zone struct {
	File string
	Text string // read instead of the file, which then is a name for errors only
	// Origin completes relative names, like "example.org"; empty when the file has an $ORIGIN line
	// or absolute names.
	Origin string
}

// Config says what to answer. The zero value refuses everything.
type Config struct {
	Zones []Zone
	// Forward lists resolvers (host:port) for names outside the zones, tried in this order; empty:
	// such names are refused.
	Forward []string
	// ForwardTimeout gives the time each resolver has, default 2 s.
	ForwardTimeout time.Duration
	// Dial reaches a resolver, over "udp" (a conn that is also a net.PacketConn) or "tcp"; default
	// net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// UDPWorkers counts the goroutines that read each net.PacketConn, default GOMAXPROCS.
	UDPWorkers int
	// ResponseRate says how many answers per second each prefix (/24, /56) gets over UDP, loopback
	// excepted; above it every second query gets an empty answer with TC, the others none. 0 means
	// DefaultResponseRate, less than 0 no limit.
	ResponseRate int
	// Logger gets errors of resolvers that do not answer; nil logs nothing.
	Logger *slog.Logger
	// Clock gives the time that the server goes by, which has to be that of its conns, and Random
	// where its random numbers come from, which any goroutine may read; the zero values are the
	// system's. For simulations.
	Clock  clock.Clock
	Random io.Reader
}

// Server answers queries on any number of conns and listeners. All methods may be called from any
// goroutine.
type Server struct {
	cfg      Config
	zones    map[string]*zone // by origin
	counters counters
	flights  *flights
	limiter  *limiter
	random   random.Source
	tcp      tcpTable
	ctx      context.Context
	cancel   context.CancelFunc

	mu      sync.Mutex
	closing bool
	open    map[closer]struct{} // what Shutdown must wake
	serving sync.WaitGroup      // Add only under mu while closing is false
}

// closer stands for a net.Conn, net.PacketConn or net.Listener.
type closer interface{ Close() error }

// New loads the zone files. The error of a broken one begins with file:line.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg:     cfg,
		zones:   map[string]*zone{},
		flights: newFlights(),
		random:  random.From(cfg.Random),
		open:    map[closer]struct{}{},
	}
	s.limiter = newLimiter(cmp.Or(cfg.ResponseRate, DefaultResponseRate), cfg.Clock, s.random)
	s.tcp.clock = cfg.Clock
	s.tcp.open = map[*tcpConn]*list.Element{}
	for _, f := range cfg.Zones {
		z, err := loadZone(f)
		if err != nil {
			return nil, err
		}
		if s.zones[z.origin] != nil {
			return nil, fmt.Errorf("%s: zone %s is already served from another file", f.File,
				z.origin)
		}
		s.zones[z.origin] = z
	}
	for _, addr := range cfg.Forward {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, fmt.Errorf(
				"resolver to forward to %q: %w (want host:port, such as 192.0.2.53:53)",
				addr,
				err,
			)
		}
	}
	if s.cfg.ForwardTimeout == 0 {
		s.cfg.ForwardTimeout = defaultForwardTimeout
	}
	if s.cfg.Dial == nil {
		s.cfg.Dial = new(net.Dialer).DialContext
	}
	if s.cfg.UDPWorkers <= 0 {
		s.cfg.UDPWorkers = runtime.GOMAXPROCS(0)
	}
	if s.cfg.Logger == nil {
		s.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// lastQuery says how long a TCP connection may still send a query after Shutdown: one that is on
// its way.
const lastQuery = 2 * time.Second

// Shutdown stops reading, lets queries in progress be answered, and closes every conn and listener;
// TCP connections that have none, two seconds later, as one may be on its way.
// When ctx ends first it aborts the rest and returns the context's error. It may be called again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for c := range s.open {
		s.interruptRead(c)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.serving.Wait(); close(done) }()
	select {
	case <-done:
		s.cancel()
		return nil
	case <-ctx.Done():
	}
	s.cancel()
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	<-done
	return ctx.Err()
}

// interruptRead ends a read in progress: by a deadline, so that answers can still be written, or
// for a listener by Close.
func (s *Server) interruptRead(c closer) {
	if conn, ok := c.(*tcpConn); ok {
		conn.SetReadDeadline(s.cfg.Clock.Now().Add(lastQuery))
		return
	}
	if d, ok := c.(interface{ SetReadDeadline(time.Time) error }); ok &&
		d.SetReadDeadline(time.Unix(1, 0)) == nil {
		return
	}
	c.Close()
}

// registerConn registers c until closeConn; false when the server is shutting down.
func (s *Server) registerConn(c closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.open[c] = struct{}{}
	s.serving.Add(1)
	return true
}

// closeConn closes c.
func (s *Server) closeConn(c closer) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	c.Close()
	s.serving.Done()
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}
