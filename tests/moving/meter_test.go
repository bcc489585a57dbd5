package moving

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestWatch: what stands still ends the context, with the reason.
func TestWatch(t *testing.T) {
	var m Meter
	ctx, stop := m.Watch(t.Context(), 20*time.Millisecond)
	defer stop()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, ErrStopped) {
		t.Errorf("cause %v", err)
	}
}

// TestWatchMoves: what moves goes on for several limits, and no reason is left at the end of work.
func TestWatchMoves(t *testing.T) {
	const limit = time.Second
	var m Meter
	ctx, stop := m.Watch(t.Context(), limit)
	for begin := time.Now(); time.Since(begin) < 3*limit/2; time.Sleep(limit / 50) {
		m.Move()
	}
	stop()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrStopped) {
		t.Errorf("cause %v", err)
	}
}
