package moving

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// looks is the number of times that a meter is checked within a limit.
const looks = 20

// Meter counts progress. Its zero value is ready. Its methods may be called concurrently.
type Meter struct {
	moved atomic.Uint64
	lossy atomic.Pointer[wire.Faulty]
}

// Move counts one step of progress.
func (m *Meter) Move() { m.moved.Add(1) }

// Losses makes the meter count what w drops, too: a sender whose retransmissions are lost has not
// stopped, and waits twice as long each time (RFC 6298 section 5.5). On a wire that drops 5 % in
// each direction four round trips in a row fail once in 10,000, which is 5 s of silence for Linux.
// A stopped connection sends nothing that could be dropped. Call Losses once, before the meter is
// used.
func (m *Meter) Losses(w *wire.Faulty) { m.lossy.Store(w) }

// count is the progress so far.
func (m *Meter) count() uint64 {
	n := m.moved.Load()
	if w := m.lossy.Load(); w != nil {
		sent, received := w.Stats()
		n += sent.Dropped + received.Dropped
	}
	return n
}

// Watch returns a context that ends, with ErrStopped as its cause, when the meter has not moved for
// the limit. Time in which the whole process is stopped does not count: Watch counts checks, not
// seconds. The caller calls stop when there is no more work.
func (m *Meter) Watch(parent context.Context,
	limit time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		tick := time.NewTicker(limit / looks)
		defer tick.Stop()
		for last, still := m.count(), 0; still < looks; still++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now := m.count(); now != last {
				last, still = now, -1
			}
		}
		cancel(fmt.Errorf("%w for %v", ErrStopped, limit))
	}()
	return ctx, func() { cancel(nil) }
}

// Context is Watch for the duration of the test, which fails if nothing has moved for the limit.
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
