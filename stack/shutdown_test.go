package stack_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestShutdownAwaitsPeers: a peer that closes its end soon after ours gets its answer; one that
// does not is waited for for a second.
func TestShutdownAwaitsPeers(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name               string
		peer, limit        time.Duration // the peer closes, ctx ends; 0: never
		atLeast, lessThan  time.Duration
		peersEndIsAnswered bool
	}{
		{"the peer closes", 500 * ms, 0, 500 * ms, time.Second, true},
		{"the peer does not close", 0, 0, time.Second, 1100 * ms, false},
		{"the context ends", 500 * ms, 200 * ms, 200 * ms, 300 * ms, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newVirtualTime(t)
			j := join(t, cable{queues: 1, clock: clock.Clock.Clock()})
			near, far := pair(t, j.server, j.client)
			must(t, near.Close())
			_, err := io.ReadAll(far)
			must(t, err)
			began := clock.Now()
			ctx, cancel := context.WithCancel(t.Context())
			after(clock.Clock, c.peer, func() { far.Close() })
			after(clock.Clock, c.limit, cancel)
			must(t, j.server.Shutdown(ctx))
			if d := clock.Now().Sub(began); d < c.atLeast || d >= c.lessThan {
				t.Errorf("it took %v, want %v to %v", d, c.atLeast, c.lessThan)
			}
			clock.sleep(t, time.Second)
			if answered := j.client.Conns() == 0; answered != c.peersEndIsAnswered {
				t.Errorf("the peer's end was answered: %v", answered)
			}
		})
	}
}

// after calls f in d, but not for 0.
func after(c *clocktest.Clock, d time.Duration, f func()) {
	if d > 0 {
		c.AfterFunc(d, f)
	}
}
