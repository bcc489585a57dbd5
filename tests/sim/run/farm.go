package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// chunk is how many seeds one process runs.
const chunk = 50

// patience is how long a seed may take of real time before its process is ended.
const patience = 3 * time.Minute

// farm shares seeds between processes.
type farm struct {
	options *options

	mu     sync.Mutex // covers what follows
	next   uint64
	done   int
	failed int
	sum    outcome // of the good ones
}

// runAll runs all seeds and prints a summary.
func (o *options) runAll() int {
	f := &farm{options: o, next: o.from}
	began := time.Now()
	var workers sync.WaitGroup
	for range max(1, o.jobs) {
		workers.Go(f.work)
	}
	workers.Wait()
	took := time.Since(began)
	fmt.Printf("%d seeds, %d failed; %.0f s of virtual time in %.1f s (%.0f times), %d frames\n",
		f.done, f.failed, f.sum.Virtual, took.Seconds(), f.sum.Virtual/took.Seconds(),
		f.sum.Frames)
	if f.failed > 0 {
		return 1
	}
	return 0
}

// work runs chunks until none is left.
func (f *farm) work() {
	for {
		f.mu.Lock()
		from, end := f.next, f.options.from+f.options.seeds
		n := min(chunk, end-from)
		if stop := f.options.first && f.failed > 0; stop || n == 0 {
			f.mu.Unlock()
			return
		}
		f.next += n
		f.mu.Unlock()
		for n > 0 {
			ran := f.runChunk(from, n)
			from, n = from+ran, n-ran
		}
	}
}

// runChunk runs seeds in a process, and returns how many it got done. One that the process died of
// counts.
func (f *farm) runChunk(from, n uint64) (ran uint64) {
	c := f.command(from, n)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		f.add(outcome{Seed: from, Err: err.Error()})
		return n
	}
	late := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer late.Stop()
	for lines := bufio.NewScanner(stdout); lines.Scan(); late.Reset(patience) {
		var r outcome
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			ran++
			f.add(r)
		}
	}
	if err := c.Wait(); ran < n {
		text := stderr.Bytes()
		f.add(outcome{Seed: from + ran, Err: fmt.Sprintf("the process died: %v\n%s", err,
			text[:min(len(text), 6000)])})
		ran++
	}
	return ran
}

// command is the worker for some seeds.
func (f *farm) command(from, n uint64) *exec.Cmd {
	args := []string{"-worker", "-from", fmt.Sprint(from), "-seeds", fmt.Sprint(n)}
	if f.options.twice {
		args = append(args, "-twice")
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, args...)
}

// add takes the outcome of a seed.
func (f *farm) add(r outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done++
	if r.Err != "" {
		f.failed++
		fmt.Printf("seed %d: %s\n  repeat: go run ./tests/sim/run -seed %d\n", r.Seed, r.Err,
			r.Seed)
		return
	}
	f.sum.Virtual += r.Virtual
	f.sum.Frames += r.Frames
}
