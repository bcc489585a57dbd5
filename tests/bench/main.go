// Command bench measures the driver alone, on rings filled ahead, and prints one table: nanoseconds per packet by path, frame
// size, features and batch. It runs the benchmarks of package dv in interleaved rounds, so that what disturbs the machine
// for a while disturbs all of them alike, and takes the median. The raw lines are kept for benchstat.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	rounds := flag.Int("rounds", 10, "how often everything is measured")
	length := flag.String("benchtime", "20ms", "of one measurement, as go test has it")
	raw := flag.String("raw", filepath.Join(os.TempDir(), "rdma-netstack-bench.txt"), "file for the raw lines, in the format of benchstat")
	flag.Parse()
	if err := run(*rounds, *length, *raw, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(rounds int, length, raw string, out io.Writer) error {
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
	var lines bytes.Buffer
	for i := range rounds {
		fmt.Fprintf(os.Stderr, "\rround %d of %d", i+1, rounds)
		c := exec.Command(program, "-test.run", "^$", "-test.bench", "^BenchmarkRings$", "-test.benchtime", length)
		c.Stdout, c.Stderr = &lines, os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("run the benchmarks of package dv: %w", err)
		}
	}
	fmt.Fprint(os.Stderr, "\r")
	if err := os.WriteFile(raw, lines.Bytes(), 0o644); err != nil {
		return err
	}
	t := newTable()
	for s := bufio.NewScanner(&lines); s.Scan(); {
		t.add(strings.Fields(s.Text()))
	}
	fmt.Fprintf(out, "%s\n%d interleaved rounds of %s each; raw lines in %s\n\n", machine(), rounds, length, raw)
	return t.print(out)
}
