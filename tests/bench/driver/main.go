// Command bench measures the driver alone, on rings filled in advance, and prints one table:
// nanoseconds per packet by path, frame size, features and batch. It runs the benchmarks of package
// dv in interleaved rounds, so that temporary load on the machine affects all of them alike, and
// takes the median. A second table is TCP across the software NIC, between two stacks and between a
// stack and a kernel, with offloads on and off; its figures include the NIC's model and the wire,
// whose work real hardware would do. The raw lines are kept for benchstat.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// options are the flags.
type options struct {
	rounds int
	length string        // of one measurement of the driver
	stream time.Duration // of one measurement of a stream
	raw    string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 10, "how often everything is measured")
	flag.StringVar(&o.length, "benchtime", "20ms",
		"of one measurement of the driver, as go test has it")
	flag.DurationVar(&o.stream, "stream", 300*time.Millisecond,
		"of one measurement of TCP; 0: none")
	flag.StringVar(&o.raw, "raw", filepath.Join(os.TempDir(), "rdma-netstack-bench.txt"),
		"file for the raw lines, in the format of benchstat")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options, out io.Writer) error {
	var lines bytes.Buffer
	if err := runRings(o, &lines); err != nil {
		return err
	}
	t := newTable()
	for s := bufio.NewScanner(bytes.NewReader(lines.Bytes())); s.Scan(); {
		t.add(strings.Fields(s.Text()))
	}
	fmt.Fprintf(out, "%s\n%d interleaved rounds of %s each; raw lines in %s\n\n", machine(),
		o.rounds, o.length, o.raw)
	if err := t.print(out); err != nil {
		return err
	}
	if o.stream > 0 {
		if err := runStreams(o, &lines, out); err != nil {
			return err
		}
	}
	return os.WriteFile(o.raw, lines.Bytes(), 0o644)
}

// runRings runs the benchmarks of package dv.
func runRings(o options, lines io.Writer) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "dv.test")
	build := exec.Command("go", "test", "-c", "-o", program, "./dv")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the benchmarks of package dv: %w", err)
	}
	for i := range o.rounds {
		progress("driver", i, o.rounds)
		c := exec.Command(program, "-test.run", "^$", "-test.bench", "^BenchmarkRings$",
			"-test.benchtime", o.length)
		c.Stdout, c.Stderr = lines, os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("run the benchmarks of package dv: %w", err)
		}
	}
	progress("", 0, 0)
	return nil
}

// runStreams measures TCP and prints the second table.
func runStreams(o options, lines, out io.Writer) (err error) {
	s := &streams{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.inMemory(); err != nil {
		return err
	}
	note := ""
	if err := lab.CanMakeNets(); err != nil {
		note = fmt.Sprintf("no streams with the kernel: they need a network namespace (%v)\n", err)
	} else if err := s.withKernel(); err != nil {
		return err
	}
	if err := s.measure(o.rounds, o.stream,
		func(i int) { progress("TCP", i, o.rounds) }); err != nil {
		return err
	}
	progress("", 0, 0)
	rawStreams(lines, s.list)
	fmt.Fprintf(out,
		"\none TCP connection across the software NIC, %d interleaved rounds of %v: medians\n%s\n",
		o.rounds, o.stream, note)
	return printStreams(out, s.list)
}

// progress shows the progress on one line of the terminal; an empty text ends it.
func progress(what string, round, rounds int) {
	if what == "" {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
		return
	}
	fmt.Fprintf(os.Stderr, "\r%s: round %d of %d ", what, round+1, rounds)
}
