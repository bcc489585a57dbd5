package sim

import (
	"errors"
	"runtime"
	"runtime/metrics"
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

// maxYields ends a run whose goroutines never wait.
const maxYields = 1_000_000

var errSpins = errors.New("a goroutine runs for ever: it neither waits nor ends")

// settle waits until nothing can run, and nothing is in a system call by b's count.
func (s settler) settle(b *busy) error {
	for range maxYields {
		runtime.Gosched()
		if s.quiet() && b.Load() == 0 {
			return nil
		}
	}
	return errSpins
}
