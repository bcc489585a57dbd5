package sim

import (
	"errors"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"time"
)

// settler waits until all other goroutines of the process wait. With one processor (GOMAXPROCS) and
// no garbage collection, what goroutines do then depends on their input only.
type settler []metrics.Sample

func newSettler() settler {
	return settler{
		{Name: "/sched/goroutines/runnable:goroutines"},
		{Name: "/sched/goroutines/running:goroutines"},
		{Name: "/sched/goroutines/not-in-go:goroutines"},
	}
}

// quiet reports whether no other goroutine can run or is in a system call.
func (s settler) quiet() bool {
	metrics.Read(s)
	return s[0].Value.Uint64() == 0 && s[1].Value.Uint64() <= 1 && s[2].Value.Uint64() == 0
}

// A run whose goroutines never wait ends when the process has used spinLimit of processor time
// behind maxYields. Real time does not count: a thread in a goroutine may wait for a processor for
// long, to which a rest gives its turn.
const (
	maxYields = 1_000_000
	rest      = time.Millisecond
	spinLimit = 10 * time.Second
)

var errSpins = errors.New("a goroutine runs for ever: it neither waits nor ends")

// settle waits until nothing can run, and nothing is in a system call by b's count.
func (s settler) settle(b *busy) error {
	var began time.Duration
	for n := 0; ; n++ {
		runtime.Gosched()
		if s.quiet() && b.Load() == 0 && (!b.maps.Load() || allWait()) {
			b.maps.Store(false)
			return nil
		}
		switch {
		case n == maxYields:
			began = processorTime()
		case n > maxYields && processorTime()-began > spinLimit:
			return errSpins
		case n > maxYields:
			time.Sleep(rest)
		}
	}
}

// processorTime is how much the process has used.
func processorTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// allWait reports whether all other goroutines wait, by a list of them: that takes long, and shows
// those that a system call has just ended for, too.
func allWait() bool {
	list, others := goroutines(), false
	for line := range strings.SplitSeq(list, "\n") {
		_, state, header := strings.Cut(line, " [")
		if !header || !strings.HasPrefix(line, "goroutine ") {
			continue
		}
		if strings.HasPrefix(state, "syscall") || strings.HasPrefix(state, "runnable") ||
			others && strings.HasPrefix(state, "running") {
			return false
		}
		others = true // the first is this one
	}
	return true
}
