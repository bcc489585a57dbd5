package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table is the samples of every benchmark, in order of first appearance.
type table struct {
	rows, batches []string
	samples       map[[2]string][]float64 // ns per packet, by row and batch
}

func newTable() *table { return &table{samples: map[[2]string][]float64{}} }

// add takes the fields of one line of output: the benchmark's name, path/size/features/batch, and
// pairs of value and unit.
func (t *table) add(fields []string) {
	if len(fields) < 4 || !strings.HasPrefix(fields[0], "BenchmarkRings/") {
		return
	}
	name := strings.TrimPrefix(fields[0], "BenchmarkRings/")
	if i := strings.LastIndexByte(name, '-'); i > strings.LastIndexByte(name, '/') {
		name = name[:i] // GOMAXPROCS
	}
	cut := strings.LastIndexByte(name, '/')
	row, batch := name[:cut], name[cut+1:]
	for i := 2; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err == nil && fields[i+1] == "ns/op" {
			t.rows, t.batches = once(t.rows, row), once(t.batches, batch)
			t.samples[[2]string{row, batch}] = append(t.samples[[2]string{row, batch}], v)
		}
	}
}

func once(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// print writes, per batch size, the median of the samples and the smallest, and at the end of the
// row the packets per second of its best batch.
func (t *table) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "path\tframe\tfeatures\t")
	for _, b := range t.batches {
		fmt.Fprintf(w, "batch %s\t", b)
	}
	fmt.Fprintln(w, "best Mpps\t")
	slices.Sort(t.rows)
	for _, row := range t.rows {
		p := strings.SplitN(row, "/", 3)
		fmt.Fprintf(w, "%s\t%s\t%s\t", p[0], p[1], p[2])
		best := 0.0
		for _, b := range t.batches {
			s := t.samples[[2]string{row, b}]
			slices.Sort(s)
			median := s[len(s)/2]
			fmt.Fprintf(w, "%.1f (%.1f)\t", median, s[0])
			best = max(best, 1e3/median)
		}
		fmt.Fprintf(w, "%.1f\t\n", best)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(out, "\nns per packet: median (smallest)\n")
	return err
}
