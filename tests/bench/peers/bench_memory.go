package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// idle measures the CPU of an idle server, in percent of a core.
func (s *sample) idle() error {
	time.Sleep(200 * time.Millisecond) // until the previous work has ended
	u, _, err := s.during(func() error { time.Sleep(time.Second); return nil })
	if err != nil {
		return err
	}
	s.out["idle"] = u.CPU / u.Wall * 100
	return nil
}

// manyConns is the number of connections for the final memory figures. A kernel's server is limited
// by the number of files that a process may open.
const manyConns = 50000

// memory measures the memory of an idle keep-alive connection: in the server's process, and in the
// kernel for both ends.
func (s *sample) memory() error {
	if err := s.memoryAt("idle conn", memoryStep); err != nil || !s.many {
		return err
	}
	n := manyConns
	if s.End.Stack == stackKernel {
		n = min(n, raiseLimit())
	}
	return s.memoryAt("idle conn of many", n)
}

func (s *sample) memoryAt(name string, n int) error {
	clients, err := s.clients(n)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range clients {
			_ = c.close()
		}
	}()
	before, err := s.server.ask(request{Op: "memory"})
	if err != nil {
		return err
	}
	kernel, got, start := kernelMemory(), 0.0, time.Now()
	for i, c := range clients {
		m, err := c.load(load{Kind: "idle", Seconds: 60, Flows: (n + i) / len(clients)})
		if err != nil {
			return err
		}
		got += m["connections"]
	}
	s.out[name+" rate"] = got / time.Since(start).Seconds()
	after, err := s.server.ask(request{Op: "memory"})
	if err != nil {
		return err
	}
	s.out[name+" count"] = got
	s.out[name] = (after.Metrics["rss"] - before.Metrics["rss"]) / got
	s.out[name+" heap"] = (after.Metrics["heap"] +
		after.Metrics["stack"] - before.Metrics["heap"] - before.Metrics["stack"]) / got
	// of both ends: it includes the client's
	s.out[name+" kernel"] = (kernelMemory() - kernel) / got
	return nil
}

// clients are processes that may open n connections together. Their connections end with them.
func (s *sample) clients(n int) (all []*proc, err error) {
	each := min(n, raiseLimit())
	if each <= 0 {
		return nil, fmt.Errorf("this process may have %d connections", each)
	}
	for i := range (n + each - 1) / each {
		p, err := startChild(s.client,
			childSpec{Client: &end{Stack: stackKernel,
				From: morePrefixes[i%len(morePrefixes)].Addr()}})
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// kernelMemory is the memory that the kernel has allocated for itself, in bytes.
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
