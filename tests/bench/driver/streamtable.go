package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// median is the median of the values of of over the samples.
func (s *stream) median(of func(sample) float64) float64 {
	v := make([]float64, len(s.samples))
	for i, m := range s.samples {
		v[i] = of(m)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// printStreams writes one line per stream: medians, and the slowest and the fastest round.
func printStreams(out io.Writer, list []*stream) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "wire\tdirection\toffloads\tMB/s\tslowest\tfastest\tCPU ns/KiB\t")
	for _, s := range list {
		rates := make([]float64, len(s.samples))
		for i, m := range s.samples {
			rates[i] = m.perSecond()
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t\n", strings.ReplaceAll(s.name, "/", "\t"),
			s.median(sample.perSecond),
			slices.Min(rates), slices.Max(rates), s.median(sample.perKiB))
	}
	return w.Flush()
}

// rawStreams writes every sample as a line that benchstat reads. An operation is 1 MiB.
func rawStreams(out io.Writer, list []*stream) {
	for _, s := range list {
		for _, m := range s.samples {
			mib := float64(m.bytes) / (1 << 20)
			fmt.Fprintf(out, "BenchmarkStream/%s-%d\t%.0f\t%.0f ns/op\t%.2f MB/s\t%.0f cpu-ns/op\n",
				s.name, runtime.GOMAXPROCS(0), mib, float64(m.wall.Nanoseconds())/mib,
				m.perSecond(), m.perKiB()*1024)
		}
	}
}
