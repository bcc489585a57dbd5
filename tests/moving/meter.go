package moving

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// looks is how often within a limit a meter is looked at.
const looks = 20

// Meter counts what moves. Its zero value is ready. Its methods may be called concurrently.
type Meter struct{ moved atomic.Uint64 }

// Move counts one more thing that has moved.
func (m *Meter) Move() { m.moved.Add(1) }

// Watch returns a context that ends, with ErrStopped as its cause, when the meter has not moved for
// the limit. The time in which the whole process stands still does not count: looks are counted,
// not seconds. The caller calls stop when there is no more work.
func (m *Meter) Watch(parent context.Context,
	limit time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		tick := time.NewTicker(limit / looks)
		defer tick.Stop()
		for last, still := m.moved.Load(), 0; still < looks; still++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now := m.moved.Load(); now != last {
				last, still = now, -1
			}
		}
		cancel(fmt.Errorf("%w for %v", ErrStopped, limit))
	}()
	return ctx, func() { cancel(nil) }
}

// Context is Watch for as long as the test lasts, which fails if nothing has moved for the limit.
func (m *Meter) Context(t testing.TB, limit time.Duration) context.Context {
	ctx, stop := m.Watch(t.Context(), limit)
	t.Cleanup(func() {
		if err := context.Cause(ctx); errors.Is(err, ErrStopped) {
			t.Error(err)
		}
		stop()
	})
	return ctx
}
