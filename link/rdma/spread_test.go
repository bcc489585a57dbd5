package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

// spreadLooks is so many looks at queues that are all this busy.
type spreadLooks struct {
	n    int
	busy float64
	want int // active queues afterwards
}

func TestSpreadPolicy(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  int
		active int
		looks  []spreadLooks
	}{
		{"idle", 8, 1, []spreadLooks{{1000, 0, 1}}},
		{"one busy look", 8, 1, []spreadLooks{{1, 1, 1}, {1, 0.5, 1}, {1, 1, 1}}},
		{"busy", 8, 1, []spreadLooks{{1, 1, 1}, {1, 1, 2}, {2, 1, 4}, {2, 1, 8}, {100, 1, 8}}},
		{"busy up to a limit", 3, 1, []spreadLooks{{2, 0.9, 2}, {2, 0.9, 3}, {100, 1, 3}}},
		{"busy but not full", 8, 2, []spreadLooks{{1000, 0.7, 2}}},
		{"less to do", 8, 4, []spreadLooks{{29, 0.3, 4}, {1, 0.3, 3}, {30, 0.3, 2}, {99, 0.3, 2}}},
		{"less to do for a moment", 8, 4, []spreadLooks{{29, 0.1, 4}, {1, 0.6, 4}, {29, 0.1, 4}}},
		{"growth soon after a shrink", 2, 2,
			[]spreadLooks{{30, 0.1, 1}, {2, 1, 2}, {59, 0.1, 2}, {1, 0.1, 1},
				{2, 1, 2}, {119, 0.1, 2}, {1, 0.1, 1}}},
		{"growth long after a shrink", 2, 2,
			[]spreadLooks{{30, 0.1, 1}, {120, 0.1, 1}, {2, 1, 2}, {29, 0.1, 2}, {1, 0.1, 1}}},
		{"patience has an end", 2, 2, []spreadLooks{{30, 0, 1}, {2, 1, 2}, {60, 0, 1}, {2, 1, 2},
			{120, 0, 1}, {2, 1, 2}, {240, 0, 1}, {2, 1, 2}, {480, 0, 1}, {2, 1, 2}, {600, 0, 1},
			{2, 1, 2}, {600, 0, 1}}},
	} {
		p := spreadPolicy{limit: c.limit, active: c.active}
		for i, l := range c.looks {
			for range l.n {
				if next := p.next(slices.Repeat([]float64{l.busy}, 8)); next != p.active {
					p.changed(next)
				}
			}
			if p.active != l.want {
				t.Fatalf("%s: %d queues after step %d, want %d", c.name, p.active, i, l.want)
			}
		}
	}
}

// One queue that is full while others rest has a flow that no other queue can take.
func TestSpreadPolicyOneFlow(t *testing.T) {
	p := spreadPolicy{limit: 8, active: 4}
	for range 29 {
		if n := p.next([]float64{1, 0.2, 0.3, 0.1, 0, 0, 0, 0}); n != 4 {
			t.Fatalf("%d queues, want 4", n)
		}
	}
}

// fakeDevice is spreadable, with the counters that a test gives it.
type fakeDevice struct {
	stats   []dv.RxStats
	weights [][]int // of the calls
	err     error   // of the next ones
}

func (d *fakeDevice) ActiveRxQueues() int { return 1 }
func (d *fakeDevice) Stats() dv.Stats     { return dv.Stats{Rx: slices.Clone(d.stats)} }
func (d *fakeDevice) Rebalance(weights []int) error {
	d.weights = append(d.weights, weights)
	return d.err
}

// work has the first queues look so often, and find frames so often.
func (d *fakeDevice) work(queues int, polls, hits uint64) {
	for i := range queues {
		d.stats[i].Polls += polls
		d.stats[i].Hits += hits
	}
}

func TestSpreader(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	d := &fakeDevice{stats: make([]dv.RxStats, 4)}
	if s := newSpreader(d, 1, clock.Clock{}); s != nil {
		t.Error("a device with one queue has a choice")
	}
	s := newSpreader(d, 4, clock.Clock{})
	s.timer.Stop()
	look := func(polls, hits uint64) {
		d.work(s.policy.active, polls, hits)
		s.at = s.at.Add(-time.Second) // a second has passed
		s.look()
	}
	look(100, 5) // looks in vain
	look(100, 100)
	if len(d.weights) != 0 {
		t.Fatalf("changed to %v after one busy look", d.weights)
	}
	d.err = fmt.Errorf("it takes over: %w", dv.ErrConfig)
	look(100, 100)
	d.err = nil
	look(100, 100)
	want := [][]int{{1, 1, 0, 0}, {1, 1, 0, 0}}
	if !slices.EqualFunc(d.weights, want, slices.Equal) || s.policy.active != 2 {
		t.Errorf("weights %v, %d active, want %v and 2", d.weights, s.policy.active, want)
	}
	for i := range d.stats {
		d.stats[i].AsleepNanos += uint64(time.Second)
	}
	if got := busyShares(make([]dv.RxStats, 4), d.stats, time.Second); slices.Max(got) != 0 {
		t.Errorf("workers that slept were busy for %v", got)
	}
	d.err = dv.ErrClosed
	look(100, 100)
	look(100, 100)
	s.stop()
	s.wait()
	calls := len(d.weights)
	look(100, 100)
	if len(d.weights) != calls {
		t.Error("a look after the end")
	}
}

// TestSpreadRefused: a device that refuses another table is asked ever more rarely, once a minute
// at last, and that it refuses is told once; so is the end of it.
func TestSpreadRefused(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	d := &fakeDevice{stats: make([]dv.RxStats, 4), err: unix.ENOMEM}
	s := newSpreader(d, 4, clock.Clock{})
	s.timer.Stop()
	var told []error
	s.told = func(err error) { told = append(told, err) }
	var at []int // the looks that asked
	looks := 0
	look := func() {
		before := len(d.weights)
		d.work(s.policy.active, 100, 100)
		s.at = s.at.Add(-time.Second)
		s.look()
		s.timer.Stop()
		if looks++; len(d.weights) > before {
			at = append(at, looks)
		}
	}
	for range 3000 {
		look()
	}
	want := []int{2, 12, 32, 72, 152, 312, 632, 1232, 1832, 2432}
	if !slices.Equal(at, want) || s.refusals.Load() != uint64(len(want)) {
		t.Errorf("asked at looks %v, counted %d, want %v", at, s.refusals.Load(), want)
	}
	if len(told) != 1 || !errors.Is(told[0], unix.ENOMEM) {
		t.Errorf("told %v, want one refusal", told)
	}
	d.err = nil
	for s.policy.active == 1 {
		look()
	}
	if len(told) != 2 || told[1] != nil || s.pause != 0 {
		t.Errorf("told %v afterwards, a pause of %d looks", told, s.pause)
	}
	s.stop()
}

func TestSpreadOptions(t *testing.T) {
	for name, c := range map[string]struct {
		o      Options
		queues int
		want   int
	}{
		"one queue": {Options{}, 1, 0}, "four": {Options{}, 4, 1},
		"all": {Options{Spread: SpreadAll}, 4, 0}, "polling": {Options{RxMode: RxPolling}, 4, 0},
	} {
		if got := c.o.ActiveRxQueues(c.queues); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	for _, s := range []Spread{SpreadLoad, SpreadAll} {
		var back Spread
		text, err := s.MarshalText()
		if err = errors.Join(err, back.UnmarshalText(text)); err != nil || back != s {
			t.Errorf("%v: %v, %v", s, back, err)
		}
	}
	if err := (Options{Spread: 2}).Validate(); err == nil ||
		err.Error() != "there is no Spread(2); use SpreadLoad or SpreadAll" {
		t.Errorf("%v", err)
	}
	if err := new(Spread).UnmarshalText([]byte("half")); err == nil {
		t.Error("half is accepted")
	}
}
