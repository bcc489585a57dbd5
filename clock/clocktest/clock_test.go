package clocktest_test

import (
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestOrder: timers expire by time, and those of one time in the order in which they were set.
func TestOrder(t *testing.T) {
	c := clocktest.New()
	began := c.Now()
	type expiry struct {
		name string
		at   time.Duration
	}
	var mu sync.Mutex
	var got []expiry
	note := func(name string) func() {
		return func() {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, expiry{name, c.Now().Sub(began)})
		}
	}
	again := c.AfterFunc(time.Second, note("again"))
	c.AfterFunc(2*time.Second, func() {
		note("first of two")()
		c.AfterFunc(0, note("at once"))
		c.AfterFunc(time.Second, note("set by a timer"))
	})
	c.AfterFunc(2*time.Second, note("second of two"))
	stopped := c.AfterFunc(2*time.Second, note("stopped"))
	c.AfterFunc(time.Hour, note("too late"))
	again.Reset(4 * time.Second)
	stopped.Stop()
	c.Advance(10 * time.Second)
	mu.Lock()
	defer mu.Unlock()
	if want := []expiry{
		{"first of two", 2 * time.Second}, {"second of two", 2 * time.Second},
		{"at once", 2 * time.Second}, {"set by a timer", 3 * time.Second},
		{"again", 4 * time.Second},
	}; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if c.Timers() != 1 || c.Now().Sub(began) != 10*time.Second {
		t.Errorf("%d timers are left after %v", c.Timers(), c.Now().Sub(began))
	}
}

// TestStep goes from timer to timer, and stands still without one.
func TestStep(t *testing.T) {
	c := clocktest.New()
	began := c.Now()
	if _, ok := c.Next(); ok || c.Step() || c.Now() != began {
		t.Error("there is a timer")
	}
	ran := make(chan struct{})
	c.AfterFunc(time.Hour, func() { close(ran) })
	if at, ok := c.Next(); !ok || at.Sub(began) != time.Hour {
		t.Errorf("the next is at %v", at)
	}
	if !c.Step() || c.Now().Sub(began) != time.Hour {
		t.Errorf("it is %v", c.Now())
	}
	<-ran
}

// TestAdvanceUntil ends when done says so, and at the limit.
func TestAdvanceUntil(t *testing.T) {
	c := clocktest.New()
	began := c.Now()
	after := func(d time.Duration) func() bool {
		return func() bool { return c.Now().Sub(began) >= d }
	}
	for i := range 10 {
		c.AfterFunc(time.Duration(i)*time.Second, func() {})
	}
	if !c.AdvanceUntil(time.Minute, after(3*time.Second)) || c.Now().Sub(began) != 3*time.Second {
		t.Errorf("done at %v", c.Now().Sub(began))
	}
	if c.AdvanceUntil(time.Minute, after(time.Hour)) || c.Now().Sub(began) != 63*time.Second {
		t.Errorf("not done at %v", c.Now().Sub(began))
	}
}

// TestRun lets a year pass for a goroutine that sleeps twice, and stops.
func TestRun(t *testing.T) {
	c := clocktest.New()
	began, half := c.Now(), 365*12*time.Hour
	stop := c.Run()
	for range 2 {
		if err := c.Clock().Sleep(t.Context(), half); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	stop()
	c.AfterFunc(time.Hour, func() { t.Error("it goes on") })
	clocktest.Settle()
	if c.Now().Sub(began) != 2*half || c.Timers() != 1 {
		t.Errorf("it is %v later, with %d timers", c.Now().Sub(began), c.Timers())
	}
}

// TestShowing shows the function's time, and has the system's timers.
func TestShowing(t *testing.T) {
	at := time.Unix(1, 0)
	c := clocktest.Showing(func() time.Time { return at })
	if at = at.Add(time.Minute); c.Now() != at {
		t.Errorf("it is %v, want %v", c.Now(), at)
	}
	<-c.NewTimer(0).C
}

// TestRandom: one seed gives the same bytes again, however they are read; another, others.
func TestRandom(t *testing.T) {
	read := func(seed uint64) (b [64]byte) {
		if _, err := io.ReadFull(clocktest.Random(seed), b[:]); err != nil {
			t.Fatal(err)
		}
		return b
	}
	one, again, other := read(1), read(1), read(2)
	if one != again || one == other {
		t.Errorf("seed 1: %x, %x; seed 2: %x", one, again, other)
	}
}
