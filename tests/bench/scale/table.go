package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// column is one figure of a row.
type column struct {
	name   string
	digits int
	of     func(r result) float64
}

// per is a count per operation.
func per(name string, digits int, of func(r result) float64) column {
	return column{name, digits, func(r result) float64 { return of(r) / max(r.Ops, 1) }}
}

var columns = []column{
	{"op/s", 0, func(r result) float64 { return r.Ops / r.Seconds }},
	per("CPU us", 2, func(r result) float64 { return r.CPU * 1e6 }),
	{"busy", 2, func(r result) float64 { return r.CPU / r.Seconds }},
	{"queued", 2, func(r result) float64 { return r.Queued / r.Seconds }},
	{"idle", 2, func(r result) float64 { return r.Idle / r.Seconds }},
	{"line ns", 0, func(r result) float64 { return r.Line }},
	per("switches", 2, func(r result) float64 { return r.Switches }),
	per("sleeps", 3, func(r result) float64 { return r.Sleeps }),
	per("preempted", 3, func(r result) float64 { return r.Preempted }),
	per("read+write", 3, func(r result) float64 { return r.Syscalls }),
	per("events", 3, func(r result) float64 { return r.Events }),
	per("arms", 3, func(r result) float64 { return r.Arms }),
	per("empty polls", 2, func(r result) float64 { return r.Polls - r.Hits }),
	per("frames", 2, func(r result) float64 { return r.Frames }),
	{"active", 0, func(r result) float64 { return r.Active }},
	{"frames/poll", 1, func(r result) float64 { return r.Frames / max(r.Hits, 1) }},
	per("doorbells", 2, func(r result) float64 { return r.Doorbells }),
	per("lock waits", 3, func(r result) float64 { return r.LockWaits }),
	per("wait us", 2, func(r result) float64 { return r.LockTime * 1e6 }),
	per("allocs", 2, func(r result) float64 { return r.Allocs }),
	per("bytes", 0, func(r result) float64 { return r.Bytes }),
}

// printTable prints a row for each cell, of the medians of its results, and how its rate and CPU
// compare with those of the first row that differs from it in cores and queues only.
func printTable(out io.Writer, cells []cell, results [][]result) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "load\tconns\tsockets\tcores\tqueues\t")
	for _, c := range columns {
		fmt.Fprint(t, c.name, "\t")
	}
	fmt.Fprintln(t, "rate ÷ first\tCPU ÷ first\t")
	for i, c := range cells {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t", c.Load, c.Conns, c.Sockets, c.Cores, c.Queues)
		for _, col := range columns {
			fmt.Fprintf(t, "%.*f\t", col.digits, col.median(results[i]))
		}
		first := results[firstLike(cells, c)]
		fmt.Fprintf(t, "%.2f\t%.2f\t\n", ratio(columns[0], results[i], first),
			ratio(columns[1], results[i], first))
	}
	return t.Flush()
}

// firstLike is the first cell that is c but for cores and queues.
func firstLike(cells []cell, c cell) int {
	return slices.IndexFunc(cells, func(o cell) bool {
		o.Cores, o.Queues = c.Cores, c.Queues
		return o == c
	})
}

func ratio(c column, a, b []result) float64 { return c.median(a) / c.median(b) }

// median is that of a column.
func (c column) median(rs []result) float64 {
	all := make([]float64, len(rs))
	for i, r := range rs {
		all[i] = c.of(r)
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
