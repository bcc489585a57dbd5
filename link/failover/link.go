package failover

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

const (
	// firstPause says how long after a loss the device is looked for first. Further pauses are an
	// eighth of the time that it has been away, up to closePause. After two minutes, for which
	// connections wait by default, they are a 120th of that time, up to longestPause.
	firstPause   = 250 * time.Millisecond
	closePause   = time.Second
	longestPause = 5 * time.Second
	// signalPause says how long after a signal the device is looked for.
	signalPause = 20 * time.Millisecond
	// reroutePause says how long after one Change that is Rerouted the next is told at the
	// earliest. The first comes signalPause after the signal.
	reroutePause = 500 * time.Millisecond
	// steady says how long a device must have worked for the first pause not to be doubled.
	steady = time.Second
)

// ErrClosed is Err of a Link that was closed.
var ErrClosed = errors.New("link is closed")

// Link describes an endpoint that outlives its device. Its methods may be called from any
// goroutine.
type Link struct {
	cfg     Config
	log     *slog.Logger
	changed chan struct{} // capacity 1: a token for LinkChanged
	mtu     chan struct{} // capacity 1: a token for MTUChanged
	recover chan struct{} // capacity 1: a token of Recover
	done    chan struct{} // closed by Close
	ended   chan struct{} // closed when run has ended
	close   sync.Once
	err     error // of devices closed at the end; written before ended is closed
	cancel  context.CancelFunc
	ctx     context.Context // of Open

	// run's.
	signals <-chan Signal
	pause   time.Duration // before the first attempt, and the shortest
	retry   clock.ChanTimer
	limit   clock.ChanTimer // MaxOutage
	closing chan struct{}   // closed when the lost device is; nil: there is none
	opening bool            // an attempt is under way
	opened  chan attempt    // its result
	again   bool            // a signal came meanwhile
	hurried bool            // retry is set for signalPause
	since   time.Time       // the last change between up and away
	reroute clock.ChanTimer // until Rerouted is told
	moving  bool            // reroute is set
	told    time.Time       // when Rerouted was told last
	cause   Cause           // of the next change of the backend

	mu     sync.Mutex // guards what follows, which run writes
	device *Opened    // nil: away
	port   *OpenedPort
	status Status
	spent  time.Time // what has passed until then is in status
}

// attempt holds what came of opening.
type attempt struct {
	device *Opened
	port   *OpenedPort
	err    error         // of the device
	took   time.Duration // to open the device
}

// Start takes over a device at work, which the endpoint of cfg works on. It opens the packet port;
// when that cannot be, the link goes on without, and says so in the log.
func Start(device Opened, cfg Config) *Link {
	l := &Link{cfg: cfg, log: cfg.Logger, signals: cfg.Signals, pause: firstPause, device: &device,
		changed: make(chan struct{}, 1), mtu: make(chan struct{}, 1),
		recover: make(chan struct{}, 1), done: make(chan struct{}),
		ended: make(chan struct{}),
		retry: stoppedTimer(cfg.Clock), reroute: stoppedTimer(cfg.Clock),
		limit: stoppedTimer(cfg.Clock), opened: make(chan attempt)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.cfg.Changed == nil {
		l.cfg.Changed = func(Change) {}
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.since = cfg.Clock.Now()
	l.spent = l.since
	l.status = Status{Backend: device.Backend.Kind(), Since: l.since,
		Switches: map[Switch]uint64{}}
	if cfg.OpenPort != nil {
		port, err := cfg.OpenPort()
		if err == nil {
			l.port = &port
		} else {
			l.log.Warn("nothing carries frames while the device is away", "error", err)
		}
	}
	go l.run()
	return l
}

func stoppedTimer(c clock.Clock) clock.ChanTimer {
	t := c.NewTimer(time.Hour)
	t.Stop()
	return t
}

// Close ends the link and closes device and port. The endpoint must not work any more. Closing
// again waits for the first Close and returns its result.
func (l *Link) Close() error {
	l.close.Do(func() {
		close(l.done)
		l.cancel()
	})
	<-l.ended
	return l.err
}

// Done is closed by Close: a link does not end with its device.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err is ErrClosed after Close, nil before.
func (l *Link) Err() error {
	select {
	case <-l.done:
		return ErrClosed
	default:
		return nil
	}
}

// LinkUp is that of the device or port at work; false if there is none.
func (l *Link) LinkUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.atWork()
	return d != nil && d.LinkUp()
}

// LinkChanged has a token in it when what is at work has told a change of LinkUp since the last one
// was taken; Config.Changed tells other changes. It is for one reader and is never closed.
func (l *Link) LinkChanged() <-chan struct{} { return l.changed }

// MTUChanged returns a channel that gets a token when the device or the port tells that its MTU
// changes, unless it still holds one. It is for one reader and is never closed.
func (l *Link) MTUChanged() <-chan struct{} { return l.mtu }

// Recover looks for the device now, also one that failed within Config.Grace. It does not
// wait, and does nothing while the device works.
func (l *Link) Recover() {
	select {
	case l.recover <- struct{}{}:
	default:
	}
}

// Status may be called at any time.
func (l *Link) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Switches = maps.Clone(s.Switches)
	s.spend(l.cfg.Clock.Since(l.spent))
	return s
}

// AtWork returns the device or port at work, nil if there is none. It may be closed at any time.
func (l *Link) AtWork() Device {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.atWork()
}

// atWork is AtWork, with mu held or by run.
func (l *Link) atWork() Device {
	switch {
	case l.device != nil:
		return l.device.Device
	case l.port != nil && l.status.Backend == rdma.BackendPacket:
		return l.port.Port
	}
	return nil
}

// count adds one to a counter of the status.
func (l *Link) count(counter *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*counter++
}

// hold says whether the device is left alone.
func (l *Link) hold(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Held = held
}
