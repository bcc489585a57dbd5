package roads

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPacing reports what a GB costs on connections with and without a rate, in seconds of the
// processor and in waits: two stacks, their NICs and the road, all on virtual time.
//
//	go test -run '^$' -bench Pacing -benchtime 1x ./tests/conformance/roads
func BenchmarkPacing(b *testing.B) {
	oneProcessor(b)
	const total = 64 << 20
	for _, conns := range []int{1, 16, 128} {
		for _, rate := range []uint64{0, 10e6, 100e6, 1e9, 10e9} {
			if rate*uint64(conns) > 0 && total*8/(rate*uint64(conns)) > 60 {
				continue // a minute of virtual time
			}
			b.Run(fmt.Sprintf("conns=%d/Mbit=%d", conns, rate/1e6), func(b *testing.B) {
				r := Road{Delay: 500 * time.Microsecond}
				waits, before := uint64(0), processorTime(b)
				for b.Loop() {
					waits += transferAtOnce(b, r, conns, rate/8, 0, total/conns).waits
				}
				gb := float64(b.N) * total / 1e9
				b.ReportMetric((processorTime(b)-before).Seconds()/gb, "cpu-s/GB")
				b.ReportMetric(float64(waits)/gb, "waits/GB")
			})
		}
	}
}

// processorTime returns what this process has taken of the processors.
func processorTime(t testing.TB) time.Duration {
	var u unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
