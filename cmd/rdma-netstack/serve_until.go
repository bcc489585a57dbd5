package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// server represents an app that serves until it is shut down.
type server interface {
	Shutdown(ctx context.Context) error
}

// lifetime ends when the device or context under a server ends; a context has the same methods, and
// so has a device.
type lifetime interface {
	Done() <-chan struct{}
	Err() error // why, when Done is closed
}

// ending says how a server ends. The functions may be nil.
type ending struct {
	device lifetime
	limit  time.Duration // for connections to finish
	log    *slog.Logger
	// taken is closed once another process has taken over.
	taken <-chan struct{}
	// drain has no connections begin any more, and returns when all that have are accepted.
	drain func(context.Context) error
	conns func() int       // that are open
	cut   func() stack.Cut // since drain was called
	// unanswered are connections to which a request came when the app had ended them
	unanswered func() uint64
	// flush waits until what was written has arrived.
	flush func(context.Context) error
	// toLinux has Linux accept new clients after a signal; nil: they are refused
	toLinux    func(context.Context) (*beside, error)
	closeStack func() error // with toLinux
}

// brokenTime says how long a server has for its end whose device or listener has failed.
const brokenTime = 5 * time.Second

// errAgain ends the time that connections have.
var errAgain = errors.New("another signal")

// serveUntilDone runs the serving functions and shuts the app down when ctx ends, another process
// has taken over, the device fails or one of them returns. A failure of the device is returned
// alone, in place of any other error.
func serveUntilDone(ctx context.Context, app server, e ending, serve ...func() error) error {
	results := make(chan error, len(serve))
	for _, fn := range serve {
		go func() { results <- fn() }()
	}
	var first error
	var next *beside
	running, why, limit := len(serve), "", e.limit
	select {
	case <-ctx.Done():
		why = bySignal
	case <-e.taken:
		why = "another process has taken over"
	case <-e.device.Done():
		limit = brokenTime
	case first = <-results:
		running--
		limit = brokenTime
	}
	stopping, cancel := stopping(ctx, limit)
	defer cancel()
	if why == bySignal {
		next = e.startBeside(stopping)
	}
	if why != "" && e.drain != nil {
		e.log.Warn("draining: no new connections", "reason", why, "connections", e.conns(),
			"limit", limit)
		if err := e.drain(stopping); err != nil {
			e.log.Warn("not all connections that had begun could be accepted", "reason", err)
		}
	}
	err := app.Shutdown(stopping)
	if stopping.Err() != nil {
		err = nil // the rest was aborted, as documented
	}
	for ; running > 0; running-- {
		err = errors.Join(err, <-results)
	}
	if failed := e.device.Err(); failed != nil {
		return failed
	}
	if why != "" && e.flush != nil {
		err = errors.Join(err, e.finish(stopping))
	}
	return errors.Join(first, err, next.end(stopping, &e))
}

// bySignal tells why a server ends: it was told to.
const bySignal = "a signal"

// stopping returns the time that connections have to finish: limit, or until another signal comes.
func stopping(ctx context.Context, limit time.Duration) (context.Context, func()) {
	timed, cancelTime := context.WithTimeout(context.WithoutCancel(ctx), limit)
	both, cancel := context.WithCancelCause(timed)
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGINT, unix.SIGTERM)
	go func() {
		select {
		case <-again:
			cancel(errAgain)
		case <-both.Done():
		}
		signal.Stop(again)
	}()
	return both, func() {
		cancel(nil)
		cancelTime()
	}
}

// finish waits until what was written has arrived, and says how the draining has ended.
func (e *ending) finish(stopping context.Context) error {
	left := e.conns()
	if stopping.Err() == nil {
		err := e.flush(stopping)
		if stopping.Err() == nil {
			e.drained()
			return err
		}
	}
	before := e.cut()
	e.log.Warn("cut the connections that were left", "connections", left, "reason",
		context.Cause(stopping), "reset_before", before.Reset, "unknown_before", before.Unknown)
	return nil
}

// drained says whether connections were cut although none was left in the end.
func (e *ending) drained() {
	cut, unanswered := e.cut(), uint64(0)
	if e.unanswered != nil {
		unanswered = e.unanswered()
	}
	if cut == (stack.Cut{}) && unanswered == 0 {
		e.log.Warn("drained: no connection was cut")
		return
	}
	if cut.Reset == 0 && unanswered == 0 { // what came late for one that had ended, too
		e.log.Warn("drained: no connection that the server had was cut", "unknown", cut.Unknown)
		return
	}
	e.log.Warn("drained: connections were cut", "reset", cut.Reset, "unknown", cut.Unknown,
		"unanswered", unanswered)
}

// ending returns that of the slice's server: it goes on until the stack ends, which outlives its
// device, and others may take over from it.
func (s *slice) ending(ctx context.Context, f *serveFlags, log *slog.Logger, by onLinux) ending {
	st, taken := s.stack, make(chan struct{})
	e := ending{device: st, limit: f.drain, log: log, taken: taken,
		drain: st.Drain, conns: st.Conns, cut: st.Cut, flush: st.Shutdown,
		toLinux: f.toLinux(st, by), closeStack: st.Close}
	l, err := running.ListenHandover(running.Directories(os.Getenv))
	if err != nil {
		return e // which the admin socket's absence has told
	}
	waiting, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if st.HandOver(waiting, l) == nil {
			close(taken)
		}
	}()
	s.cleanup.add(func() error {
		cancel()
		<-ended
		return nil
	})
	return e
}
