package sim

import (
	"errors"
	"runtime"
	"runtime/metrics"
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

// A run whose goroutines never wait ends after maxYields, and then maxRests, which give the
// processor to threads that the system keeps waiting: on a busy machine one can be in a goroutine,
// and not run, for longer than a million yields take.
const (
	maxYields = 1_000_000
	maxRests  = 10_000
	rest      = time.Millisecond
)

var errSpins = errors.New("a goroutine runs for ever: it neither waits nor ends")

// settle waits until nothing can run, and nothing is in a system call by b's count.
func (s settler) settle(b *busy) error {
	for n := range maxYields + maxRests {
		if n >= maxYields {
			time.Sleep(rest)
		}
		runtime.Gosched()
		if s.quiet() && b.Load() == 0 {
			return nil
		}
	}
	return errSpins
}
