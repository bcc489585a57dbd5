package rdma

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

// spreader gives flows to as many receive queues of a device as the load needs, by way of the NIC's
// indirection table (dv.Device.Rebalance). A queue without flows costs nothing: its worker sleeps.
// One with a few costs a wake-up and a delivery for each of its batches, which are the smaller the
// more queues there are. TAS does the same with the cores of its fast path (A. Kaufmann et al.,
// "TAS: TCP Acceleration as an OS Service", EuroSys 2019, section 3.4).
//
// It looks every spreadInterval, by a timer. Stop ends that, and does not wait; after wait no look
// is under way.
type spreader struct {
	dev   spreadable
	timer clock.Timer
	clock clock.Clock
	ended atomic.Bool

	mu     sync.Mutex // held during a look; guards what follows
	policy spreadPolicy
	last   []dv.RxStats
	at     time.Time // of last
}

// spreadable is what a spreader needs of a device, which is a *dv.Device but in tests.
type spreadable interface {
	ActiveRxQueues() int
	Rebalance(weights []int) error
	Stats() dv.Stats
}

// spreadInterval is the time between two looks. Linux's scheduler needs some ms to spread the
// workers over processors after a change, so that a shorter one would see the change itself.
const spreadInterval = 100 * time.Millisecond

// spreaders are those of a backend's devices; none if the queues with flows stay as they are.
func (e *Endpoint) spreaders(queues backend) (all []*spreader) {
	if !e.opts.spreads() {
		return nil
	}
	for _, dev := range devicesOf(queues) {
		if s := newSpreader(dev, dev.NumRx(), e.opts.Clock); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// newSpreader begins to look after dev, which has so many receive queues. Nil: there is no choice.
func newSpreader(dev spreadable, queues int, c clock.Clock) *spreader {
	limit := min(queues, max(1, runtime.GOMAXPROCS(0)/2))
	active := dev.ActiveRxQueues()
	if limit == 1 || active > limit {
		return nil
	}
	s := &spreader{dev: dev, clock: c, at: c.Now(), last: dev.Stats().Rx,
		policy: spreadPolicy{limit: limit, active: active}}
	s.timer = c.AfterFunc(spreadInterval, s.look)
	return s
}

// stop ends the looks, but for one that is under way.
func (s *spreader) stop() {
	s.ended.Store(true)
	s.timer.Stop()
}

// wait waits for a look that is under way after stop.
func (s *spreader) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// look is called by the timer.
func (s *spreader) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Load() {
		return
	}
	now, stats := s.clock.Now(), s.dev.Stats().Rx
	busy := busyShares(s.last, stats, now.Sub(s.at))
	s.last, s.at = stats, now
	if next := s.policy.next(busy); next != s.policy.active {
		switch err := s.dev.Rebalance(firstQueues(next, len(stats))); {
		case err == nil:
			s.policy.changed(next)
		case errors.Is(err, dv.ErrClosed) || errors.Is(err, dv.ErrFailed):
			return // it is replaced
		}
		// else one that takes over from another process, which has not ended: later
	}
	if !s.ended.Load() {
		s.timer.Reset(spreadInterval)
	}
}

// firstQueues are weights that give the first n of so many queues equal shares.
func firstQueues(n, queues int) []int {
	weights := make([]int, queues)
	for i := range n {
		weights[i] = 1
	}
	return weights
}

// busyShares is, for each queue, for which share of the time its worker had frames: of the time
// that it did not sleep, the share of looks at the ring that found some.
func busyShares(before, now []dv.RxStats, passed time.Duration) []float64 {
	shares := make([]float64, len(now))
	for i := range shares {
		polls := now[i].Polls - before[i].Polls
		if polls == 0 || passed <= 0 {
			continue
		}
		awake := 1 - float64(now[i].AsleepNanos-before[i].AsleepNanos)/float64(passed)
		shares[i] = max(0, awake) * float64(now[i].Hits-before[i].Hits) / float64(polls)
	}
	return shares
}
