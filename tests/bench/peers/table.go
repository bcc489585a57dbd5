package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// print writes the tables: values, then ratios.
func (r *results) print(w io.Writer) {
	noise, _ := spreadOf(r.Noise)
	fmt.Fprintf(w,
		"%s, %d CPUs (%s), linux %s, %s, %d rounds in %.0f s; others kept %.2f [%.2f..%.2f] CPUs "+
			"busy\n",
		r.Date.Format("2006-01-02 15:04"), r.Machine.CPUs, r.Machine.CPU, r.Machine.Kernel,
		r.Machine.Go, r.Rounds, r.Seconds,
		noise.median, noise.low, noise.high)
	for _, group := range groups {
		if columns := r.where(group); len(columns) > 0 {
			r.printGroup(w, columns, group)
		}
	}
	for _, f := range r.Failed {
		fmt.Fprintf(w, "\nfailed: %s: %s: %s", f.Peer, f.What, f.Why)
	}
	fmt.Fprintln(w)
}

// Groups of peers that are compared with each other.
const (
	groupShared = "Kernel client"
	groupApart  = "Kernel client on a processor of its own"
	groupWAN    = "Kernel client 40 ms away, 1 % of frames lost"
	groupMemory = "Both ends in one process"
)

var groups = []string{groupShared, groupApart, groupWAN, groupMemory}

func (r *results) where(group string) (cs []*column) {
	for _, c := range r.Peers {
		if c.Group == group {
			cs = append(cs, c)
		}
	}
	return cs
}

func (r *results) printGroup(w io.Writer, columns []*column, group string) {
	fmt.Fprintf(w, "\n%s: medians [lowest..highest]\n\n", group)
	rows := [][]string{append([]string{""}, names(columns)...)}
	for _, q := range catalogue() {
		row, any := []string{strings.TrimSpace(q.Title + ", " + q.Unit)}, false
		for _, c := range columns {
			s, ok := c.of(q.Key)
			any = any || ok
			row = append(row, cell(s, ok, q.Digits))
		}
		if any {
			rows = append(rows, row)
		}
	}
	write(w, rows)
	for _, us := range columns {
		if us.Ours {
			r.printRatios(w, us, columns)
		}
	}
}

// printRatios compares one of our configurations with each peer.
func (r *results) printRatios(w io.Writer, us *column, columns []*column) {
	var others []*column
	for _, c := range columns {
		if c != us {
			others = append(others, c)
		}
	}
	fmt.Fprintf(w, "\n%s / each peer (+: better, -: worse than the peer)\n\n", us.Name)
	rows := [][]string{append([]string{""}, names(others)...)}
	for _, q := range catalogue() {
		row, any := []string{q.Title}, false
		for _, c := range others {
			s, ok := ratio(us, c, q.Key)
			any = any || ok
			row = append(row, ratioCell(s, ok, q.Less))
		}
		if any {
			rows = append(rows, row)
		}
	}
	write(w, rows)
}

func names(columns []*column) (n []string) {
	for _, c := range columns {
		n = append(n, c.Name)
	}
	return n
}

func cell(s spread, ok bool, digits int) string {
	if !ok {
		return "-"
	}
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	if s.low == s.high {
		return f(s.median)
	}
	return fmt.Sprintf("%s [%s..%s]", f(s.median), f(s.low), f(s.high))
}

func ratioCell(s spread, ok, less bool) string {
	if !ok {
		return "-"
	}
	mark := ""
	if better := s.median > 1 != less; s.median != 1 {
		mark = map[bool]string{true: " +", false: " -"}[better]
	}
	return fmt.Sprintf("%.2f%s", s.median, mark)
}

// write aligns a table as markdown.
func write(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for n, row := range rows {
		for i, c := range row {
			fmt.Fprintf(w, "| %-*s ", width[i], c)
		}
		fmt.Fprintln(w, "|")
		if n == 0 {
			for _, k := range width {
				fmt.Fprintf(w, "|%s", strings.Repeat("-", k+2))
			}
			fmt.Fprintln(w, "|")
		}
	}
}
