package clock

import (
	"context"
	"sync"
	"time"
)

// WithTimeout is context.WithTimeout by this clock.
func (c Clock) WithTimeout(parent context.Context,
	d time.Duration) (context.Context, context.CancelFunc) {
	return c.WithDeadline(parent, c.Now().Add(d))
}

// WithTimeoutCause is context.WithTimeoutCause by this clock.
func (c Clock) WithTimeoutCause(parent context.Context, d time.Duration,
	cause error) (context.Context, context.CancelFunc) {
	return c.WithDeadlineCause(parent, c.Now().Add(d), cause)
}

// WithDeadline is context.WithDeadline by this clock.
func (c Clock) WithDeadline(parent context.Context,
	end time.Time) (context.Context, context.CancelFunc) {
	return c.WithDeadlineCause(parent, end, nil)
}

// WithDeadlineCause is context.WithDeadlineCause by this clock. parent's deadline is taken for one
// of this clock.
func (c Clock) WithDeadlineCause(parent context.Context, end time.Time,
	cause error) (context.Context, context.CancelFunc) {
	if c.source == nil {
		return context.WithDeadlineCause(parent, end, cause)
	}
	if cause == nil {
		cause = context.DeadlineExceeded
	}
	if earlier, ok := parent.Deadline(); ok && earlier.Before(end) {
		end = earlier
	}
	inner, cancel := context.WithCancelCause(parent)
	ctx := &limited{Context: inner, end: end, done: make(chan struct{})}
	stop := context.AfterFunc(parent, func() { ctx.finishOnce(parent.Err()) })
	finish := func(err, cause error) {
		cancel(cause)
		ctx.finishOnce(err)
	}
	expire := func() { finish(context.DeadlineExceeded, cause) }
	timer := c.source.AfterFunc(c.Until(end), expire)
	switch {
	case parent.Err() != nil:
		ctx.finishOnce(parent.Err())
	case c.Until(end) <= 0:
		expire()
	}
	return ctx, func() {
		stop()
		timer.Stop()
		finish(context.Canceled, context.Canceled)
	}
}

// limited wraps a context with a deadline that is not of the system's clock. The one inside
// has the cause; its error and its channel are not used, as package context knows no way to end it
// with DeadlineExceeded.
type limited struct {
	context.Context
	end  time.Time
	done chan struct{}

	mu  sync.Mutex
	err error // guarded by mu; written once, before done is closed
}

// finishOnce ends the context, unless it has ended.
func (l *limited) finishOnce(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// Deadline implements context.Context.
func (l *limited) Deadline() (time.Time, bool) { return l.end, true }

// Done implements context.Context.
func (l *limited) Done() <-chan struct{} { return l.done }

// Err implements context.Context.
func (l *limited) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
