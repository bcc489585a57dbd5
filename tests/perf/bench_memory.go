package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// idle measures a server that has nothing to do, in percent of a core.
func (s *sample) idle() error {
	time.Sleep(200 * time.Millisecond) // until the work before has faded away
	u, _, err := s.during(func() error { time.Sleep(time.Second); return nil })
	if err != nil {
		return err
	}
	s.out["idle"] = u.CPU / u.Wall * 100
	return nil
}

// manyConns is where memory is measured for good.
const manyConns = 50000

// memory measures what an idle keep-alive connection costs the server's process, and the kernel on both ends.
func (s *sample) memory() error {
	steps := []int{memoryStep}
	if s.many {
		steps = append(steps, manyConns)
	}
	for _, n := range steps {
		if err := s.memoryAt(n); err != nil {
			return err
		}
	}
	return nil
}

func (s *sample) memoryAt(n int) error {
	before, err := s.server.ask(request{Op: "memory"})
	if err != nil {
		return err
	}
	kernel := kernelMemory()
	m, err := s.loads.load(load{Kind: "idle", Seconds: 30, Flows: n})
	if err != nil {
		return err
	}
	after, err := s.server.ask(request{Op: "memory"})
	if err != nil {
		return err
	}
	name := "idle conn"
	if n == manyConns {
		name = "idle conn of 50k"
		s.out["conns to 50k"] = m["rate"]
	}
	got := m["connections"]
	s.out[name] = (after.Metrics["rss"] - before.Metrics["rss"]) / got
	s.out[name+" heap"] = (after.Metrics["heap"] + after.Metrics["stack"] - before.Metrics["heap"] - before.Metrics["stack"]) / got
	s.out[name+" kernel"] = (kernelMemory() - kernel) / got // of both ends: the client's is in there
	_, err = s.loads.load(load{Kind: "hang up"})
	return err
}

// kernelMemory is what the kernel has allocated for itself, in bytes.
func kernelMemory() (sum float64) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "Slab:" {
			kib, _ := strconv.ParseFloat(f[1], 64)
			sum += kib * 1024
		}
	}
	return sum
}
