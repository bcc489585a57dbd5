package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
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
	pause  int       // looks between attempts, while the device refuses; 0: it does not
	rest   int       // looks until the next attempt

	refusals *atomic.Uint64
	told     func(error) // of a refusal, and of nil when there is none any more
}

// The pause after a refusal, in looks: a second at first, a minute at last. Each attempt is some
// ten commands to the firmware.
const (
	firstSpreadPause   = 10
	longestSpreadPause = 600
)

// spreadable lists what a spreader needs of a device, which is a *dv.Device but in tests.
type spreadable interface {
	ActiveRxQueues() int
	Rebalance(weights []int) error
	Stats() dv.Stats
}

// spreadInterval gives the time between two looks. Linux's scheduler needs some ms to spread the
// workers over processors after a change, so that a shorter one would see the change itself.
const spreadInterval = 100 * time.Millisecond

// spreaders returns those of a backend's devices; none if the queues with flows stay as they are.
func (e *Endpoint) spreaders(queues backend) (all []*spreader) {
	if !e.opts.spreads() {
		return nil
	}
	for _, dev := range devicesOf(queues) {
		if s := newSpreader(dev, dev.NumRx(), e.opts.Clock); s != nil {
			s.refusals = &e.spreadRefusals
			s.told = e.opts.SpreadRefused
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
		refusals: new(atomic.Uint64),
		policy:   spreadPolicy{limit: limit, active: active}}
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
	next := s.policy.next(busy)
	s.rest = max(s.rest-1, 0)
	if next != s.policy.active && s.rest == 0 {
		switch err := s.dev.Rebalance(firstQueues(next, len(stats))); {
		case err == nil:
			s.policy.changed(next)
			s.granted()
		case errors.Is(err, dv.ErrClosed) || errors.Is(err, dv.ErrFailed):
			return // it is replaced
		case errors.Is(err, dv.ErrConfig):
			// it takes over from another process, which has not ended; no command was given: later
		default:
			s.refused(err)
		}
	}
	if !s.ended.Load() {
		s.timer.Reset(spreadInterval)
	}
}

// refused notes that the device does not change its table, and waits longer each time.
func (s *spreader) refused(err error) {
	s.refusals.Add(1)
	first := s.pause == 0
	s.pause = min(max(2*s.pause, firstSpreadPause), longestSpreadPause)
	s.rest = s.pause
	if first && s.told != nil {
		s.told(err)
	}
}

// granted notes that the device has changed its table.
func (s *spreader) granted() {
	if s.pause != 0 && s.told != nil {
		s.told(nil)
	}
	s.pause, s.rest = 0, 0
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

// spreadPolicy decides how many queues get flows, from how busy they are. It has no clock: it
// counts looks.
//
//	       two looks in a row: all busy          patience looks in a row: one less would do
//	n ───────────────────────────────────▶ 2n   n ────────────────────────────────────────▶ n-1
//
// Growth soon after a shrink doubles the patience, so that a load which wants n-1 and n in turn
// does not move flows, which are reordered then, again and again.
type spreadPolicy struct {
	limit, active int
	full          int // looks in a row that found all busy
	spare         int // looks in a row that found one queue to spare
	patience      int // of these, before there is one less; 0: minPatience
	sinceShrink   int // looks
	shrunk        bool
}

const (
	fullShare   = 0.8 // of the time on average, of a queue that has no more to give
	fullLooks   = 2
	spareShare  = 0.5 // of the time, that the queues which are left would be busy on average
	minPatience = 30  // looks: 3 s
	maxPatience = 600
)

// next returns how many queues should get flows, when those have been busy for these shares of the
// time since the look before.
func (p *spreadPolicy) next(busy []float64) int {
	sum := 0.0
	for _, share := range busy[:p.active] {
		sum += share
	}
	p.sinceShrink++
	p.full, p.spare = p.full+1, p.spare+1
	if sum < fullShare*float64(p.active) || slices.Max(busy[:p.active]) < fullShare {
		p.full = 0
	}
	if p.active == 1 || sum > spareShare*float64(p.active-1) {
		p.spare = 0
	}
	switch {
	case p.full >= fullLooks:
		return min(2*p.active, p.limit)
	case p.spare >= max(p.patience, minPatience):
		return p.active - 1
	}
	return p.active
}

// changed notes that n queues get flows now.
func (p *spreadPolicy) changed(n int) {
	if n < p.active {
		p.shrunk, p.sinceShrink = true, 0
	} else if p.shrunk {
		p.patience = max(p.patience, minPatience)
		if p.sinceShrink < 4*p.patience {
			p.patience = min(2*p.patience, maxPatience)
		} else {
			p.patience = minPatience
		}
	}
	p.active, p.full, p.spare = n, 0, 0
}

// Spread is over how many of a device's receive queues flows are spread.
type Spread uint8

// The ways.
const (
	// SpreadLoad is as many as the load needs, and no more than half of the processors
	// (GOMAXPROCS), but one at least. With RxPolling it is all: those workers never sleep.
	SpreadLoad Spread = iota
	// SpreadAll is all there are.
	SpreadAll
)

var spreads = [...]string{SpreadLoad: "load", SpreadAll: "all"}

// String implements fmt.Stringer.
func (s Spread) String() string {
	if int(s) < len(spreads) {
		return spreads[s]
	}
	return fmt.Sprintf("Spread(%d)", uint8(s))
}

// Validate says in one sentence what is wrong with s, or nil.
func (s Spread) Validate() error {
	if int(s) >= len(spreads) {
		return fmt.Errorf("there is no %s; use SpreadLoad or SpreadAll", s)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (s Spread) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: load, all.
func (s *Spread) UnmarshalText(text []byte) error {
	for i, name := range spreads {
		if name == string(text) {
			*s = Spread(i)
			return nil
		}
	}
	return fmt.Errorf("want load or all")
}

// spreads says whether the number of queues with flows follows the load. On a clock that is not the
// system's it does not: what happens there must not depend on the machine's processors.
func (o Options) spreads() bool {
	return o.Spread == SpreadLoad && o.RxMode != RxPolling && !o.Clock.Virtual()
}

// ActiveRxQueues is dv.Config.ActiveRxQueues for a device of so many receive queues that is opened
// for an endpoint with these options: 0 is all of them.
func (o Options) ActiveRxQueues(queues int) int {
	if queues < 2 || !o.spreads() {
		return 0
	}
	return 1
}
