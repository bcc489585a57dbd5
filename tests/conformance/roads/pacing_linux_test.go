package roads

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPacing compares connections with a rate with as many that have none, on a road that lets
// out the same in all, keeps what waits and loses nothing: in turns, two stacks, their NICs and the
// road, all on virtual time. It reports the processor time with rates in parts of that without, the
// frames of both ways likewise, and the waits for each MB. What waking a goroutine by a timer costs
// the kernel, and by how much it is late, virtual time does not show.
//
//	go test -run '^$' -bench Pacing -benchtime 5x ./tests/conformance/roads
func BenchmarkPacing(b *testing.B) {
	oneProcessor(b)
	for _, conns := range []uint64{1, 16, 128} {
		for _, rate := range []uint64{1e6, 10e6, 100e6, 1e9, 10e9} {
			b.Run(fmt.Sprintf("conns=%d/Mbit=%d", conns, rate/1e6), func(b *testing.B) {
				const longest, most = 20, 64 << 20 // seconds of virtual time, bytes
				each := int(min(rate/8*longest, most/conns))
				all := float64(rate*conns) / 8 * 1.02 // with what Ethernet adds
				r := Road{Delay: 500 * time.Microsecond, Rate: all, Queue: 1e12}
				var without, with transferred
				for b.Loop() {
					one := transferAtOnce(b, r, int(conns), 0, 0, each, processorTime)
					other := transferAtOnce(b, r, int(conns), rate/8, 0, each, processorTime)
					without.spent, with.spent = without.spent+one.spent, with.spent+other.spent
					without.frames, with.frames = one.frames, other.frames
					without.took, with.took = one.took, other.took
					with.waits = other.waits
				}
				b.ReportMetric(with.spent.Seconds()/without.spent.Seconds(), "cpu-ratio")
				b.ReportMetric(float64(with.frames)/float64(without.frames), "frames-ratio")
				b.ReportMetric(with.took.Seconds()/without.took.Seconds(), "time-ratio")
				b.ReportMetric(float64(with.waits)/float64(each*int(conns))*1e6, "waits/MB")
				b.ReportMetric(0, "ns/op")
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
