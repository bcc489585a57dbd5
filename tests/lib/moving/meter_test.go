package moving

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// TestWatch: without progress the context ends, with the reason.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Meter
		ctx, stop := m.Watch(t.Context(), 20*time.Millisecond)
		defer stop()
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, ErrStopped) {
			t.Errorf("cause %v", err)
		}
	})
}

// TestWatchMoves: with progress the context lasts for several limits, and has no cause at the end
// of work.
func TestWatchMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		var m Meter
		ctx, stop := m.Watch(t.Context(), limit)
		for begin := time.Now(); time.Since(begin) < 3*limit/2; time.Sleep(limit / 50) {
			m.Move()
		}
		stop()
		<-ctx.Done()
		err := context.Cause(ctx)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrStopped) {
			t.Errorf("cause %v", err)
		}
	})
}

// TestWatchLosses: a frame that a wire drops is an attempt; without further attempts, the context
// ends.
func TestWatchLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		a, b := wire.Pair()
		defer b.Close()
		w := wire.WithFaults(a, wire.FaultConfig{Drop: 1})
		defer w.Close()
		var m Meter
		m.Losses(w)
		ctx, stop := m.Watch(t.Context(), limit)
		defer stop()
		begin := time.Now()
		for ; time.Since(begin) < 3*limit/2; time.Sleep(limit / 50) {
			if _, err := w.Send([]frame.Frame{{Data: make([]byte, 60)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := ctx.Err(); err != nil {
			t.Errorf("ended while frames were lost: %v", context.Cause(ctx))
		}
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, ErrStopped) {
			t.Errorf("cause %v", err)
		}
	})
}
