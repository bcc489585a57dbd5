package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// chunk is how many seeds one process runs.
const chunk = 50

// A seed may use spinLimit of processor time; where that cannot be read it may take patience. Then
// its process is ended: a goroutine never waits.
const (
	spinLimit = 20 * time.Second
	patience  = 3 * time.Minute
)

// progressEvery is after how many seeds a line says how far it is.
const progressEvery = 10_000

// farm shares seeds between processes.
type farm struct {
	options *options
	ctx     context.Context // ends with a signal, and the workers with it

	mu     sync.Mutex // covers what follows
	next   uint64
	done   int
	failed int
	peak   int64   // memory of the largest worker, in KiB
	sum    outcome // of the good ones
	placed int     // of them: those in which large writes were sent without copying
}

// runAll runs all seeds, until a signal ends it, and prints a summary.
func (o *options) runAll() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f := &farm{options: o, ctx: ctx, next: o.from}
	began := time.Now()
	var workers sync.WaitGroup
	for range max(1, o.jobs) {
		workers.Go(f.work)
	}
	workers.Wait()
	took := time.Since(began).Seconds()
	fmt.Printf("%d seeds, %d failed; %.0f s of virtual time in %.1f s: %.0f times real time, "+
		"%.1f seeds/s; %d frames; the largest of %d workers had %d MiB\n", f.done, f.failed,
		f.sum.Virtual, took, f.sum.Virtual/took, float64(f.done)/took, f.sum.Frames,
		max(1, o.jobs), f.peak>>10)
	fmt.Printf("%d of %d worlds sent without copying, %d packets\n", f.placed, f.done-f.failed,
		f.sum.InPlace)
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
		if n == 0 || f.ctx.Err() != nil || f.options.first && f.failed > 0 {
			f.mu.Unlock()
			return
		}
		f.next += n
		f.mu.Unlock()
		for n > 0 && !f.over() {
			ran := f.runChunk(from, n)
			from, n = from+ran, n-ran
		}
	}
}

// over reports whether the first failure was enough, or a signal has come.
func (f *farm) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ctx.Err() != nil || f.options.first && f.failed > 0
}

// runChunk runs seeds in a process, and returns how many it got done: up to the first that fails.
// One that the process died of counts.
func (f *farm) runChunk(from, n uint64) (ran uint64) {
	c := f.command(from, n)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	switch {
	case f.ctx.Err() != nil:
		return n
	case err != nil:
		f.add(outcome{Seed: from, Err: err.Error()})
		return n
	}
	seen, stop := make(chan struct{}, 1), make(chan struct{})
	defer close(stop)
	go watch(c.Process, seen, stop)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		select {
		case seen <- struct{}{}:
		default:
		}
		var r outcome
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			ran++
			f.add(r)
		}
	}
	err = c.Wait()
	f.measure(c.ProcessState)
	if f.ctx.Err() == nil && (ran == 0 || err != nil) {
		text := stderr.Bytes()
		f.add(outcome{Seed: from + ran, Err: fmt.Sprintf("the process died: %v\n%s", err,
			text[:min(len(text), 6000)])})
		ran++
	}
	return ran
}

// watch ends a process that spins in a seed, with the stacks of its goroutines. Each token in seen
// is a seed that has ended; it ends itself with stop.
func watch(p *os.Process, seen, stop <-chan struct{}) {
	began, used := time.Now(), processorTime(p.Pid)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return
		case <-seen:
			began, used = time.Now(), processorTime(p.Pid)
			continue
		case <-look.C:
		}
		now := processorTime(p.Pid)
		if now-used > spinLimit || now == 0 && time.Since(began) > patience {
			_ = p.Signal(syscall.SIGQUIT)
			return
		}
	}
}

// measure takes note of the memory that a worker had.
func (f *farm) measure(p *os.ProcessState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u, ok := p.SysUsage().(*syscall.Rusage); ok {
		f.peak = max(f.peak, int64(u.Maxrss))
	}
}

// command is the worker for some seeds.
func (f *farm) command(from, n uint64) *exec.Cmd {
	args := []string{"-worker", "-from", fmt.Sprint(from), "-seeds", fmt.Sprint(n)}
	if f.options.twice {
		args = append(args, "-twice")
	}
	if f.options.only != "" {
		args = append(args, "-only", f.options.only)
	}
	if f.options.path {
		args = append(args, "-path")
	}
	if f.options.host {
		args = append(args, "-host")
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.CommandContext(f.ctx, self, args...)
}

// add takes the outcome of a seed.
func (f *farm) add(r outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Left {
		return
	}
	f.done++
	if r.Err != "" {
		f.failed++
		fmt.Printf("seed %d: %s\n  repeat: go run ./tests/sim/run -seed %d", r.Seed, r.Err, r.Seed)
		if f.options.path {
			fmt.Print(" -path")
		}
		if f.options.host {
			fmt.Print(" -host")
		}
		fmt.Println()
		return
	}
	f.sum.Virtual += r.Virtual
	f.sum.Frames += r.Frames
	if f.sum.InPlace += r.InPlace; r.InPlace > 0 {
		f.placed++
	}
	if f.done%progressEvery == 0 {
		fmt.Fprintf(os.Stderr, "%d seeds, %d failed\n", f.done, f.failed)
	}
}
