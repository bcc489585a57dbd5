package roads

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// oneProcessor makes worlds reproducible.
func oneProcessor(t testing.TB) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// number returns that of an environment variable, or else usual.
func number(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// within opens a world for as long as f runs.
func within(t testing.TB, f func(w *World)) {
	t.Helper()
	w, err := NewWorld()
	useWorld(t, w, err, f)
}

// withinExact does what within does for what counts each nanosecond.
func withinExact(t testing.TB, f func(w *World)) {
	t.Helper()
	w, err := NewExactWorld()
	useWorld(t, w, err, f)
}

// useWorld runs f on a world that was opened, and closes it.
func useWorld(t testing.TB, w *World, err error, f func(w *World)) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	f(w)
}

// rate returns that of one transfer in MB/s, 0 if it has stopped, and how it went.
func rate(t *testing.T, r Road, seed uint64, size int) (rate float64, what string) {
	t.Helper()
	within(t, func(w *World) {
		ways := w.Travel(r, seed)
		bytes, err := w.Bulk(size, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		rate = bytes / 1e6
		what = fmt.Sprintf("%.2f (lost %d, resent %d, by the link %d)", rate,
			ways[0].Lost+ways[0].Full, w.Server.Stats().TCPRetransmits,
			w.Server.LinkStats().TxResent)
	})
	return rate, what
}

// TestWorlds compares rates with the least that they are to be: the median of three seeds, and each
// of them with a third of it. WORLDS names roads to print the rates of, "all" for all of them:
// RTTS=20,80 WORLDS="clean,1 % late" SEEDS=3 BULK=32. PAUSE=15 has a host pause for 15 ms twice a
// second, which HyStart takes for a queue or misses one for.
func TestWorlds(t *testing.T) {
	oneProcessor(t)
	if os.Getenv("WORLDS") != "" {
		printWorlds(t)
		return
	}
	need.Long(t, "transfers of 16 MiB, a second each")
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	for _, tt := range worlds {
		rtt := time.Duration(tt.rtt) * time.Millisecond
		roads := Roads(rtt)
		r := roads[slices.IndexFunc(roads, func(r Road) bool { return r.Name == tt.road })]
		t.Run(fmt.Sprintf("%d ms, %s", tt.rtt, r.Name), func(t *testing.T) {
			var rates []float64
			for seed := range uint64(3) {
				is, what := rate(t, r, seed, max(tt.mib, usualMiB)<<20)
				t.Logf("seed %d: %s", seed, what)
				if is < tt.least/3 {
					t.Errorf("seed %d: %.2f MB/s, less than a third of %v", seed, is, tt.least)
				}
				rates = append(rates, is)
			}
			if m := median(rates); m < tt.least {
				t.Errorf("%.2f MB/s, want %v", m, tt.least)
			}
		})
	}
}

// TestNoPath: a transfer has its rate again after a time in which nothing arrives. Timeouts one
// after the other lower netstack's threshold to two segments.
func TestNoPath(t *testing.T) {
	oneProcessor(t)
	need.Long(t, "transfers of 32 MiB, some seconds")
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	const begins = time.Second
	r := Roads(80 * time.Millisecond)[0]
	for _, tt := range []struct {
		lasts time.Duration
		least float64 // MB/s of 32 MiB
	}{{0, 15.5}, {300 * time.Millisecond, 12}, {2 * time.Second, 5.5}} {
		within(t, func(w *World) {
			for _, way := range w.Travel(r, 0) {
				way.Lose = func([]byte) bool {
					return w.Now() >= begins && w.Now() < begins+tt.lasts
				}
			}
			rate, err := w.Bulk(32<<20, time.Hour)
			t.Logf("without a path for %v: %.2f MB/s", tt.lasts, rate/1e6)
			if err != nil || rate/1e6 < tt.least {
				t.Errorf("without a path for %v: %.2f MB/s, want %v (%v)", tt.lasts, rate/1e6,
					tt.least, err)
			}
		})
	}
}

// TestFilledQueue: a transfer goes on where slow start has filled a queue, as pauses of 15 ms keep
// HyStart from seeing it, and a thousand frames are lost, each second one of a round trip. Netstack
// keeps 100 ranges of what has come between them, and at 200 ms it does not see what is lost again
// of what it sends again.
func TestFilledQueue(t *testing.T) {
	oneProcessor(t)
	need.Long(t, "three transfers of 16 MiB, a second each")
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	for _, tt := range []struct {
		rtt   time.Duration
		seed  uint64
		least float64
	}{{80 * time.Millisecond, 2, 5}, {80 * time.Millisecond, 5, 5},
		{200 * time.Millisecond, 1, 3}} {
		roads := Roads(tt.rtt)
		r := roads[slices.IndexFunc(roads, func(r Road) bool { return r.Name == "100M/100ms" })]
		r.Pause, r.Every = 15*time.Millisecond, 497*time.Millisecond
		within(t, func(w *World) {
			ways := w.Travel(r, tt.seed)
			rate, err := w.Bulk(usualMiB<<20, time.Minute)
			t.Logf("%v, seed %d: %.2f MB/s, %d frames lost", tt.rtt, tt.seed, rate/1e6,
				ways[0].Full)
			if err != nil || rate/1e6 < tt.least {
				t.Errorf("%v, seed %d: %.2f MB/s, want %v (%v)", tt.rtt, tt.seed, rate/1e6,
					tt.least, err)
			}
			if ways[0].Full < 500 {
				t.Errorf("%v, seed %d: %d frames are lost: it shows nothing", tt.rtt, tt.seed,
					ways[0].Full)
			}
			if ways[0].Full > 2000 { // 2,700 where what is sent again leaves in bursts
				t.Errorf("%v, seed %d: %d frames are lost, 1,000 of them by slow start", tt.rtt,
					tt.seed, ways[0].Full)
			}
		})
	}
}

// TestLongPauses: a transfer goes on beside pauses that are longer than a round trip and lose
// nothing. netstack takes each for a rest or a loss, and its window stays small. Shorter ones make
// it take what is late for lost.
func TestLongPauses(t *testing.T) {
	oneProcessor(t)
	need.Long(t, "transfers of 24 MiB, some seconds")
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	for _, tt := range []struct {
		rtt, pause time.Duration
		road       string
		seed       uint64
		least      float64 // MB/s
	}{
		// 0.2 to 0.8 with netstack's own timeout.
		{80, 120, "100M/100ms", 0, 2}, {80, 120, "100M/100ms", 1, 2}, {80, 120, "100M/100ms", 2, 2},
		// 5.4, 1.1, 0.3 and 0.1 where nothing is undone.
		{20, 15, "5 % late", 0, 12}, {20, 60, "5 % late", 1, 10}, {20, 200, "clean", 5, 4},
		{80, 120, "100M/100ms", 4, 3},
	} {
		roads := Roads(tt.rtt * time.Millisecond)
		r := roads[slices.IndexFunc(roads, func(r Road) bool { return r.Name == tt.road })]
		r.Pause, r.Every = tt.pause*time.Millisecond, 497*time.Millisecond
		within(t, func(w *World) {
			ways := w.Travel(r, tt.seed)
			rate, err := w.Bulk(24<<20, time.Minute)
			t.Logf("%+v: %.2f MB/s, %d frames lost", tt, rate/1e6, ways[0].Full)
			if err != nil || rate/1e6 < tt.least {
				t.Errorf("%+v: %.2f MB/s (%v)", tt, rate/1e6, err)
			}
		})
	}
}

// TestRest: a connection that has lost something and rests for a minute goes on as before. CUBIC's
// time is to stand still meanwhile.
func TestRest(t *testing.T) {
	oneProcessor(t)
	need.Long(t, "transfers of 4 MiB, some seconds")
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	const size = 4 << 20
	roads := Roads(20 * time.Millisecond)
	within(t, func(w *World) {
		ways := w.Travel(roads[slices.IndexFunc(roads,
			func(r Road) bool { return r.Name == "100M/10ms" })], 0)
		server, client, err := w.connect()
		must(t, err)
		defer func() { w.await(time.Minute, func() { _, _ = server.Close(), client.Close() }) }()
		var rates []float64
		for range 3 {
			began, full := w.Now(), ways[0].Full
			go func() { _, _ = server.Write(make([]byte, size)) }()
			w.await(time.Hour, func() { _, err = io.CopyN(io.Discard, client, size) })
			must(t, err)
			rates = append(rates, size/(w.Now()-began).Seconds()/1e6)
			t.Logf("%.2f MB/s, %d frames lost", rates[len(rates)-1], ways[0].Full-full)
			rested := make(chan struct{})
			w.clock.Clock().AfterFunc(time.Minute, func() { close(rested) })
			w.await(time.Hour, func() { <-rested })
		}
		if ways[0].Full == 0 {
			t.Error("nothing is lost: the test shows nothing")
		}
		if least := slices.Min(rates); least < rates[0]*0.7 {
			t.Errorf("%.2f MB/s after a rest, %.2f before", least, rates[0])
		}
	})
}

func printWorlds(t *testing.T) {
	for _, rtt := range durations(t) {
		for _, r := range named(Roads(rtt), os.Getenv("WORLDS")) {
			line := fmt.Sprintf("%3d ms %-12s", rtt.Milliseconds(), r.Name)
			if pause := number("PAUSE", 0); pause > 0 {
				r.Pause, r.Every = time.Duration(pause)*time.Millisecond, 497*time.Millisecond
			}
			for seed := range uint64(number("SEEDS", 1)) {
				_, what := rate(t, r, seed, number("BULK", 16)<<20)
				line += " | " + what
			}
			t.Log(line)
		}
	}
}

// durations returns the round trips of RTTS, which are in milliseconds.
func durations(t *testing.T) (all []time.Duration) {
	list := os.Getenv("RTTS")
	if list == "" {
		list = "1,20,80,200"
	}
	for _, ms := range strings.Split(list, ",") {
		d, err := time.ParseDuration(ms + "ms")
		must(t, err)
		all = append(all, d)
	}
	return all
}

// named returns the roads of a list, or all.
func named(roads []Road, list string) (some []Road) {
	names := strings.Split(list, ",")
	for _, r := range roads {
		if slices.Contains(names, r.Name) || slices.Contains(names, "all") {
			some = append(some, r)
		}
	}
	return some
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// usualMiB tells how much a transfer of worlds has where that says nothing else.
const usualMiB = 16

// worlds lists the least rates of 16 MiB, in MB/s: nine tenths of the medians or a little less, and
// half to seven tenths where what a few losses or pauses cost differs by a factor between seeds.
// Those at 1 Gbit/s are for longer than slow start takes there.
var worlds = []struct {
	rtt   int // ms
	road  string
	least float64
	mib   int // 0: usualMiB
}{
	{1, "clean", 21, 0},
	{1, "1 % loss", 10, 0},
	{1, "1 % late", 12, 0},
	{20, "clean", 19, 0},
	{20, "0.1 % loss", 2.8, 0},
	{20, "1 % loss", 0.65, 0},
	{20, "1 % late", 18, 0},
	{20, "5 % late", 18, 0},
	{20, "bursts", 17, 0},
	{20, "pauses", 8, 0},
	{20, "twice", 19, 0},
	{20, "100M/100ms", 10, 0},
	{20, "100M/10ms", 10, 0},
	{80, "clean", 12, 0},
	{80, "0.1 % loss", 0.8, 0},
	{80, "1 % late", 11.5, 0},
	{80, "5 % late", 11.5, 0},
	{80, "pauses", 11.5, 0},
	{80, "100M/100ms", 8, 0},
	{80, "100M/10ms", 3.6, 0},
	{80, "1G", 32, 64},
	{200, "100M/10ms", 1.5, 0},
	{200, "1G", 13, 64},
}

// TestAnswers compares how long an answer in one write takes of which segments are lost.
func TestAnswers(t *testing.T) {
	oneProcessor(t)
	for _, tt := range answers {
		t.Run(tt.String(), func(t *testing.T) {
			within(t, func(w *World) {
				ways := w.Travel(Road{Delay: answerDelay}, 1)
				ways[0].Lose = losing(tt.lost, tt.size)
				took, err := w.Answers(1, tt.size)
				if err != nil || len(took) != 1 {
					t.Fatal(took, err)
				}
				t.Logf("%v, Linux %v", took[0], tt.linux)
				if took[0] > tt.most {
					t.Errorf("took %v, want at most %v", took[0], tt.most)
				}
			})
		})
	}
}

const answerDelay = 25 * time.Millisecond

// answer describes what is lost of an answer with a round trip of 50 ms, how long Linux 6.18
// then takes, and how long the product may take.
type answer struct {
	size        int
	name        string
	lost        []int // data frames of the server, from 0; -1: the last
	linux, most time.Duration
}

func (a answer) String() string { return fmt.Sprintf("%d bytes, %s lost", a.size, a.name) }

var answers = func() []answer {
	const ms = time.Millisecond
	return []answer{
		{14000, "nothing", nil, 51 * ms, 52 * ms},
		{14000, "the first", []int{0}, 102 * ms, 115 * ms},
		{14000, "first, fourth and seventh", []int{0, 3, 6}, 102 * ms, 115 * ms},
		{14000, "the last", []int{-1}, 375 * ms, 410 * ms},
		{14000, "the last two", []int{-2, -1}, 463 * ms, 210 * ms},
		{60000, "nothing", nil, 153 * ms, 155 * ms},
		{60000, "the first", []int{0}, 307 * ms, 225 * ms},
		{60000, "first, fourth and seventh", []int{0, 3, 6}, 304 * ms, 225 * ms},
		{60000, "the 20th, 24th and 28th", []int{19, 23, 27}, 203 * ms, 215 * ms},
		{60000, "the last", []int{-1}, 468 * ms, 510 * ms},
		{60000, "the last two", []int{-2, -1}, 366 * ms, 310 * ms},
	}
}()

// losing loses frames with data of an answer by their number: -1 is the last, -2 that before.
func losing(numbers []int, size int) func(b []byte) bool {
	n, sent := -1, 0
	return func(b []byte) bool {
		h := frame.Parse(b)
		payload := h.End - h.L4At - h.L4Len
		if h.L4At == 0 || payload == 0 {
			return false
		}
		n++
		sent += payload
		fromEnd := -1 - (size-sent+1447)/1448
		return slices.Contains(numbers, n) || sent <= size && slices.Contains(numbers, fromEnd)
	}
}
