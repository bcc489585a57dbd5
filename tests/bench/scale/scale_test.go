package main

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each load does its work, and what it cannot do without is counted.
func TestCells(t *testing.T) {
	for name := range loads {
		c := cell{Load: name, Stack: stackOurs,
			Cores: 2, Queues: 2, Sockets: 2, Conns: 3, Mode: "adaptive",
			Spread: "all",
			Length: 50 * time.Millisecond}
		var r result
		var missing []string
		// Other processes may have the processors for the whole of a window: look at several.
		for n := 0; n == 0 || n < 20 && len(missing) > 0; n++ {
			var err error
			if r, err = c.here(); err != nil {
				t.Fatalf("%v: %v", c, err)
			}
			missing = uncounted(r)
		}
		if len(missing) > 0 {
			t.Errorf("%v: none of: %v", c, missing)
		}
		if !(r.Line > 0) && runtime.NumCPU() > 1 && runtime.GOOS == "linux" {
			t.Errorf("%v: a cache line took %v ns", c, r.Line)
		}
		if r.Hits > r.Polls || r.Hits > r.Frames {
			t.Errorf("%v: %v polls, %v found %v frames", c, r.Polls, r.Hits, r.Frames)
		}
	}
}

// uncounted lists the counts of a window that counted nothing.
func uncounted(r result) (missing []string) {
	for _, count := range []struct {
		name string
		n    float64
	}{{"operations", r.Ops}, {"CPU", r.CPU}, {"switches", r.Switches}, {"frames", r.Frames},
		{"polls", r.Polls}, {"doorbells", r.Doorbells}, {"queued", r.Queued}} {
		if !(count.n > 0) {
			missing = append(missing, count.name)
		}
	}
	return missing
}

// Each load runs on netstack alone, too.
func TestCeiling(t *testing.T) {
	for name := range loads {
		c := cell{Load: name, Stack: stackCeiling, Cores: 2, Queues: 1, Sockets: 2, Conns: 3,
			Length: 50 * time.Millisecond}
		r, err := c.here()
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if !(r.Ops > 0 && r.CPU > 0) || r.Frames != 0 {
			t.Errorf("%v: %v operations, %v s, %v frames", c, r.Ops, r.CPU, r.Frames)
		}
	}
}

func TestTable(t *testing.T) {
	o := options{loads: "echo", stack: stackOurs, cores: "1,2", queues: "1", sockets: "8"}
	cells, err := o.cells()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printTable(&out, cells, [][]result{
		{{Ops: 10, Seconds: 1, CPU: 1}, {Ops: 20, Seconds: 1, CPU: 1}, {Ops: 90, Seconds: 1}},
		{{Ops: 30, Seconds: 1, CPU: 3, Switches: 60}},
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range [][]string{
		{"load", "rate"}, {"echo", "64", "8", "1", "20"}, {"echo", "30", "2.00", "1.50"},
	} {
		fields := strings.Fields(lines[i])
		for _, w := range want {
			if !slices.Contains(fields, w) {
				t.Errorf("line %q lacks %s", lines[i], w)
			}
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for _, o := range []options{
		{loads: "telnet", stack: stackOurs, cores: "1"},
		{loads: "echo", stack: stackOurs, cores: "0"},
		{loads: "echo", stack: stackOurs, cores: "1,x"},
		{loads: "echo", stack: "kernel", cores: "1"},
		{loads: "echo", stack: stackCeiling, cores: "1", queues: "4"},
	} {
		if _, err := o.cells(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
