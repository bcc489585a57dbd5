package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestCompare runs all loads for a short time on both stacks.
func TestCompare(t *testing.T) {
	need.Long(t, "runs every load twice, 5 s")
	need.NetNS(t)
	need.TUN(t)
	var stdout, stderr bytes.Buffer
	if code := run([]string{"compare", "--json", "--time", "30ms"}, &stdout,
		&stderr); code != exitDone {
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
		want, says  string
	}{
		{100, 200, false, "slice", "2.0 times as fast"},
		{100, 250, true, "host", "2.5 times slower"},
		{250, 100, false, "host", "2.5 times slower"},
		{200, 100, true, "slice", "2.0 times as fast"},
		{100, 105, false, "even", "as fast"},
		{105, 100, true, "even", "as fast"},
	} {
		row := compared{load: compareLoad{Lower: c.lower}, Host: c.host, Slice: c.slice}
		if got, says := row.winner(), row.verdict(); got != c.want || says != c.says {
			t.Errorf("host %v, slice %v, lower is better %v: %s, %s; want %s, %s", c.host, c.slice,
				c.lower, got, says, c.want, c.says)
		}
	}
}

func TestCompareFlags(t *testing.T) {
	for _, args := range [][]string{{"--time", "1us"}, {"--time", "1h"},
		{"--queues", "0"}, {"now"}} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"compare"}, args...), &stdout, &stderr); code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
}
