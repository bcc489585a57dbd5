//go:build linux

package attack

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits for a server: growth of its memory, and shares of legitimate requests that are answered
// during the attack and from a second after its end.
const (
	growthLimit = 64 << 20
	duringLimit = 0.95
	afterLimit  = 1.0
	recovery    = time.Second
)

// Behaviour of legitimate clients.
const (
	clients  = 4
	pace     = 100 * time.Millisecond // between the requests of one client
	patience = 3 * time.Second        // of one request: a lost SYN is repeated after one second
	asks     = 10                     // of each client after the attack
	least    = 100                    // requests during an attack for a meaningful share
	longest  = 4                      // times the attack's time, the limit for reaching least
)

// client makes one request and returns nil if the answer is correct.
type client func(ctx context.Context) error

// tally counts requests.
type tally struct {
	mu       sync.Mutex
	asked    int           // guarded by mu
	answered int           // guarded by mu
	slowest  time.Duration // of those answered; guarded by mu
	failures map[string]int
}

// ask makes one request and counts it.
func (y *tally) ask(c client) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	err := c(ctx)
	took := time.Since(began)
	y.mu.Lock()
	defer y.mu.Unlock()
	y.asked++
	if err == nil {
		y.answered++
		y.slowest = max(y.slowest, took)
		return
	}
	if y.failures == nil {
		y.failures = map[string]int{}
	}
	y.failures[err.Error()]++
}

func (y *tally) share() float64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.asked == 0 {
		return -1
	}
	return float64(y.answered) / float64(y.asked)
}

func (y *tally) String() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	s := fmt.Sprintf("%d of %d requests answered, the slowest in %v", y.answered, y.asked,
		y.slowest.Round(time.Millisecond))
	shown := 0
	for text, n := range y.failures {
		if shown++; shown > 3 {
			break
		}
		s += fmt.Sprintf("; %d: %s", n, text)
	}
	return s
}

// enough closes done when the attack's time is over and there were enough requests. On a busy
// machine that takes longer.
func (y *tally) enough(done chan<- struct{}) {
	defer close(done)
	began := time.Now()
	time.Sleep(*attackTime)
	for time.Since(began) < longest**attackTime {
		y.mu.Lock()
		asked := y.asked
		y.mu.Unlock()
		if asked >= least {
			return
		}
		time.Sleep(pace)
	}
}

// until has clients make requests at their pace until done is closed.
func (y *tally) until(done <-chan struct{}, newClient func() client) {
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c := newClient()
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				y.ask(c)
				select {
				case <-done:
					return
				case <-tick.C:
				}
			}
		})
	}
	all.Wait()
}

// some has each of the clients make a number of requests.
func some(newClient func() client) *tally {
	y := &tally{}
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c := newClient()
			for range asks {
				y.ask(c)
			}
		})
	}
	all.Wait()
	return y
}

// under measures an attack, for which done is closed when its time is over. It returns after the
// requests that follow the attack.
func (w *world) under(name string, newClient func() client, attack func(done <-chan struct{})) row {
	w.t.Helper()
	if y := some(newClient); y.share() < 1 {
		w.t.Fatalf("before the attack: %v", y)
	}
	w.baseline, w.peak = w.rss(), 0
	done, watched := make(chan struct{}), make(chan struct{})
	go func() { defer close(watched); w.watchMemory(done) }()
	during, began := &tally{}, time.Now()
	go during.enough(done)
	var all sync.WaitGroup
	all.Go(func() { attack(done) })
	during.until(done, newClient)
	all.Wait()
	w.lasted = time.Since(began)
	<-watched
	time.Sleep(recovery) // the criterion itself: clients are served from then on
	after := some(newClient)
	w.t.Logf("%s: during: %v; after: %v", name, during, after)
	r := row{attack: name, during: during.share(), after: after.share(),
		growth: max(w.peak, w.rss()) - w.baseline}
	return r
}

// judge applies the limits common to all attacks, and adds the row to the table.
func (w *world) judge(r row) {
	w.t.Helper()
	if r.during >= 0 && r.during < duringLimit {
		w.t.Errorf("during the attack %s of the requests were answered, want %s",
			percent(r.during), percent(duringLimit))
	}
	if r.after >= 0 && r.after < afterLimit {
		w.t.Errorf("%v after the attack %s of the requests were answered, want all",
			recovery, percent(r.after))
	}
	if limit := cmp.Or(r.limit, growthLimit); r.growth > limit {
		w.t.Errorf("resident memory grew by %d MiB, want at most %d", r.growth>>20, limit>>20)
	}
	r.failed = w.t.Failed()
	results.add(r)
}

// watchMemory records the server's peak memory until done is closed.
func (w *world) watchMemory(done <-chan struct{}) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		w.watch.Lock()
		w.peak = max(w.peak, w.rss())
		w.watch.Unlock()
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// rss is the server's resident memory in bytes (proc_pid_status(5), VmRSS); 0 when it is gone.
func (w *world) rss() int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
