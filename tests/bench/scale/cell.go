package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// cell is one row of the table.
type cell struct {
	Load    string
	Stack   string // ours or ceiling
	Cores   int    // GOMAXPROCS
	Queues  int    // receive queues, of each NIC
	Sockets int    // clients at once
	Conns   int    // idle TCP connections
	Mode    string
	Spread  string
	Length  time.Duration
}

func (c cell) String() string {
	return fmt.Sprintf("%s with %d cores, %d queues, %d sockets, %d connections", c.Load, c.Cores,
		c.Queues, c.Sockets, c.Conns)
}

// warmUp is how long a load runs before it is measured.
const warmUp = 100 * time.Millisecond

// longest is how long a measurement takes for the fewest operations, for which Length is too short
// on a busy machine.
const longest = 30 * time.Second

// measure runs a cell in a process of its own.
func (c cell) measure() (r result, err error) {
	spec, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.Command(self, "-cell", string(spec))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return r, json.Unmarshal(out, &r)
}

// here measures a cell in this process, whose GOMAXPROCS it sets.
func (c cell) here() (r result, err error) {
	line := lineTime()
	runtime.GOMAXPROCS(c.Cores)
	debug.SetGCPercent(400) // collections of a small heap would be most of it
	w, err := newWorld(c)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.openIdle(c.Conns); err != nil {
		return r, err
	}
	run, err := w.start(loads[c.Load], c.Sockets)
	if err != nil {
		return r, err
	}
	runtime.GC()
	time.Sleep(warmUp)
	before := w.read(run)
	for began := time.Now(); ; {
		time.Sleep(c.Length)
		if run.operations() >= uint64(before.Ops)+run.fewest() || time.Since(began) > longest {
			break
		}
	}
	after := w.read(run)
	if err := run.stop(); err != nil {
		return r, err
	}
	r = after.since(before)
	r.Line = line
	return r, nil
}
