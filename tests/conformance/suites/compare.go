package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/tests/conformance/suites/localhost"
)

// comparison is the result of one suite.
type comparison struct {
	suite  string
	side   map[string]results
	differ []difference
	notes  *localhost.Notes // of a library's suite
}

// difference is a test that ended differently.
type difference struct {
	test, host, slice string
	reason            string // "": it should not
}

// repeats is the number of times that a test with different results is repeated alone, on both
// sides, before it counts: some of Go's own tests fail occasionally on a busy machine.
const repeats = 2

// repeatsOfLibrary counts likewise for libraries, whose tests have times of milliseconds.
const repeatsOfLibrary = 4

// compare runs a suite on both sides.
func (w *workshop) compare(s *suite, reasons map[string]string) (*comparison, error) {
	c := &comparison{suite: s.name, side: map[string]results{}}
	var differ []string
	for name := range reasons {
		if test, ok := strings.CutPrefix(name, s.name+" "); ok {
			differ = append(differ, test)
		}
	}
	order := sides
	if s.sliceFirst() {
		order = []string{onSlice}
	}
	for _, side := range order {
		var apart, leave []string
		switch {
		case s.sliceFirst():
			leave = differ
		case side == onSlice:
			apart = differ
		}
		r, log, err := w.runAll(s, side, apart, leave)
		if err != nil {
			return nil, err
		}
		c.side[side] = r
		if err := w.write("log-"+strings.ReplaceAll(s.name, "/", "-")+"-"+side,
			[]byte(log)); err != nil {
			return nil, err
		}
	}
	if s.notes != "" {
		if err := w.noteCrossing(c, s); err != nil {
			return nil, err
		}
	}
	return c, w.settleAll(c, s, reasons)
}

// noteCrossing reads what the slice's side says that it did, and runs on the host what did not pass
// there, if nothing else is.
func (w *workshop) noteCrossing(c *comparison, s *suite) (err error) {
	if c.notes, err = localhost.ReadNotes(s.notes); err != nil {
		return err
	}
	if c.side[host] != nil {
		return nil
	}
	c.side[host] = results{}
	for test, outcome := range c.side[onSlice] {
		if c.side[host][test] = passed; outcome == passed {
			continue
		}
		if err := s.buildHost(); err != nil {
			return err
		}
		if c.side[host][test], err = w.runSome(s, host, test); err != nil {
			return err
		}
	}
	return nil
}

// settleAll looks for differences.
func (w *workshop) settleAll(c *comparison, s *suite, reasons map[string]string) error {
	var all []string
	for test := range c.side[host] {
		all = append(all, test)
	}
	for test := range c.side[onSlice] {
		if c.side[host][test] == "" {
			all = append(all, test)
		}
	}
	sort.Strings(all)
	for _, test := range all {
		if err := w.settle(c, s, test, reasons); err != nil {
			return err
		}
	}
	return nil
}

// settle records whether a test ended differently.
func (w *workshop) settle(c *comparison, s *suite, test string, reasons map[string]string) error {
	reason := reasons[s.name+" "+test]
	n := repeats
	if s.notes != "" {
		n = repeatsOfLibrary
	}
	for range n {
		if c.side[host][test] == c.side[onSlice][test] || reason != "" {
			break
		}
		for _, side := range sides {
			if c.side[side][test] == passed {
				continue
			}
			o, err := w.runSome(s, side, test)
			if err != nil {
				return err
			}
			c.side[side][test] = o
		}
	}
	if h, o := c.side[host][test], c.side[onSlice][test]; h != o {
		c.differ = append(c.differ, difference{test, h, o, reason})
	}
	return nil
}

// neither lists the tests that pass on neither side although they are not skipped: they show
// nothing.
func (c *comparison) neither() (list []string) {
	for test, h := range c.side[host] {
		o := c.side[onSlice][test]
		if h == o && (h == failed || h == crashed) {
			list = append(list, test)
		}
	}
	sort.Strings(list)
	return list
}

// report prints the table and the differences, and fails if one is not by design.
func report(out io.Writer, all []*comparison, reasons map[string]string, short bool) error {
	const line = "%-14s %-6s %6s %6s %6s %6s\n"
	fmt.Fprintf(out, line, "tests of", "on", "pass", "fail", "skip", "crash")
	for _, c := range all {
		for _, side := range sides {
			r := c.side[side]
			n := func(o string) string { return fmt.Sprint(r.count(o)) }
			fmt.Fprintf(out, line, c.suite, side, n(passed), n(failed), n(skipped), n(crashed))
		}
	}
	for _, c := range all {
		if both := c.neither(); len(both) > 0 {
			fmt.Fprintf(out, "%s, on both sides: fail %s\n", c.suite, strings.Join(both, ", "))
		}
	}
	wrong, needed, ran := 0, map[string]bool{}, map[string]bool{}
	for _, c := range all {
		if c.notes != nil {
			fmt.Fprintf(out, "%s: %s\n", c.suite, c.notes)
			if c.notes.Frames == 0 {
				fmt.Fprintf(out, "%s: NOTHING CROSSED A WIRE\n", c.suite)
				wrong++
			}
		}
	}
	for _, c := range all {
		ran[c.suite] = true
		for _, d := range c.differ {
			why := "by design: " + d.reason
			if d.reason == "" {
				why = "NOT BY DESIGN"
				wrong++
			}
			needed[c.suite+" "+d.test] = true
			fmt.Fprintf(out, "%s %s: host %s, slice %s. %s\n", c.suite,
				d.test, d.host, d.slice, why)
		}
	}
	for name := range reasons {
		if suite, _, _ := strings.Cut(name, " "); ran[suite] && !needed[name] && !short {
			fmt.Fprintf(out, "%s: is in bydesign, and does not differ: take it out\n", name)
			wrong++
		}
	}
	if wrong > 0 {
		return errDiffers
	}
	return nil
}

// readReasons reads the list of tests that differ by design: "package Test: reason", and lines that
// begin with #.
func readReasons(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	reasons := map[string]string{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		name, reason, ok := strings.Cut(text, ": ")
		if !ok || len(strings.Fields(name)) != 2 || reasons[name] != "" {
			return nil, fmt.Errorf("%s:%d: want \"package Test: reason\", each test once", file, n)
		}
		reasons[name] = reason
	}
	return reasons, lines.Err()
}
