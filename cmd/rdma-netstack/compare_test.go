package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

// TestCompare runs all loads for a moment on both stacks.
func TestCompare(t *testing.T) {
	need.NetNS(t)
	need.TUN(t)
	var stdout, stderr bytes.Buffer
	if code := run([]string{"compare", "--json", "--time", "30ms"}, &stdout, &stderr); code != exitDone {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var got struct {
		Results []struct {
			Name, Unit, Winner string
			Host, Slice        float64
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Results) < len(compareLoads("")) {
		t.Errorf("%d results, want %d", len(got.Results), len(compareLoads("")))
	}
	for _, r := range got.Results {
		if r.Name == "" || r.Unit == "" || r.Winner == "" || r.Host <= 0 || r.Slice <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

func TestCompareWinner(t *testing.T) {
	for _, c := range []struct {
		host, slice float64
		lower       bool
		want        string
	}{
		{100, 200, false, "slice"},
		{100, 200, true, "host"},
		{200, 100, false, "host"},
		{200, 100, true, "slice"},
		{100, 105, false, "even"},
		{105, 100, true, "even"},
	} {
		row := compared{load: compareLoad{Lower: c.lower}, Host: c.host, Slice: c.slice}
		if got := row.winner(); got != c.want {
			t.Errorf("host %v, slice %v, lower is better %v: %s, want %s", c.host, c.slice, c.lower, got, c.want)
		}
	}
}

func TestCompareFlags(t *testing.T) {
	for _, args := range [][]string{{"--time", "1us"}, {"--time", "1h"}, {"--queues", "0"}, {"now"}} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"compare"}, args...), &stdout, &stderr); code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
}
