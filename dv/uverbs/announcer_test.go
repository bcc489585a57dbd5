package uverbs

import (
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestAnnouncer: the scheduler is told of waits that are far apart, and of one in quietFor of those
// that are not; as long as it is not told a timer is pending.
func TestAnnouncer(t *testing.T) {
	c := clocktest.New()
	a := newAnnouncer(c.Clock())
	for i, step := range []struct {
		pause  time.Duration
		told   bool
		timers int
	}{
		{0, true, 0},
		{time.Second, true, 0},
		{2 * quietFor, true, 0},
		{time.Microsecond, true, 1},
		{time.Microsecond, false, 1},
		{quietFor - 2*time.Microsecond, false, 1},
		{time.Microsecond, true, 1},
		{time.Microsecond, false, 1},
		{2*quietFor - 2*time.Microsecond, true, 1},
		{quietFor - time.Microsecond, false, 1},
		{2 * quietFor, true, 0}, // the timer fired
	} {
		c.Advance(step.pause)
		if told := a.announce(); told != step.told || c.Timers() != step.timers {
			t.Errorf("wait %d: told %v with %d timers, want %v, %d", i, told, c.Timers(),
				step.told, step.timers)
		}
	}
	c.Advance(time.Microsecond)
	a.announce()
	if a.stop(); c.Timers() != 0 {
		t.Errorf("%d timers are left", c.Timers())
	}
}

// TestChannelWaitsInARow: the scheduler is not told of waits that follow each other.
func TestChannelWaitsInARow(t *testing.T) {
	ch, peer := channelFixture(t)
	untold := 0
	for range 1000 {
		send(t, peer, compRecord(7))
		if n, err := ch.WaitQuietly(); n != 1 || err != nil {
			t.Fatalf("wait: %d, %v", n, err)
		}
		if !ch.events.told {
			untold++
		}
		send(t, peer, compRecord(7))
		if n, err := ch.Wait(); n != 1 || err != nil || !ch.events.told {
			t.Fatalf("wait: %d, %v, told %v", n, err, ch.events.told)
		}
	}
	if untold == 0 {
		t.Error("the scheduler was told of each of 1,000 waits in a row")
	}
	arrived := make(chan error, 1)
	go func() {
		_, err := ch.WaitQuietly() // parks
		arrived <- err
	}()
	send(t, peer, compRecord(7))
	if err := <-arrived; err != nil {
		t.Error(err)
	}
}
