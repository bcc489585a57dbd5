package main

import (
	"strings"
	"testing"
)

// Lines of go test become medians, per row and batch; other lines are ignored.
func TestTable(t *testing.T) {
	tab := newTable()
	for line := range strings.Lines(`goos: linux
BenchmarkRings/rx/64B/plain/32-2   1000  30.0 ns/op  1e8 pkts/s  0 B/op  0 allocs/op
BenchmarkRings/rx/64B/plain/32-2   1000  10.0 ns/op  1e8 pkts/s  0 B/op  2 allocs/op
BenchmarkRings/rx/64B/plain/32-2   1000  20.0 ns/op  1e8 pkts/s  0 B/op  0 allocs/op
BenchmarkOther/rx-2   1000  1.0 ns/op
PASS
`) {
		tab.add(strings.Fields(line))
	}
	var out strings.Builder
	if err := tab.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"batch 32", "20.0 (10.0)", "50.0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "Other") || len(tab.rows) != 1 {
		t.Errorf("rows %q", tab.rows)
	}
}
