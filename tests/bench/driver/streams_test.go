package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// Every stream carries data in each round. Offloads that are on in its row were used, those that
// are off were not.
func TestStreams(t *testing.T) {
	s := &streams{}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.inMemory(); err != nil {
		t.Fatal(err)
	}
	const rounds = 2
	if err := s.measure(rounds, 20*time.Millisecond, func(int) {}); err != nil {
		t.Fatal(err)
	}
	checkTable(t, s, rounds)
	for i, st := range s.list {
		used(t, st, "TSO", func() uint64 { return s.slices[2*i].link.Stats().TxLSO })
		used(t, st, "GRO", func() uint64 { return s.slices[2*i+1].link.Stats().RxMerged })
	}
}

// used continues to send until the offload's count rises, if the stream's name contains the
// offload; otherwise the count must be 0.
func used(t *testing.T, st *stream, offload string, count func() uint64) {
	t.Helper()
	if !strings.Contains(st.name, offload) {
		if n := count(); n != 0 {
			t.Errorf("%s: %s was used %d times", st.name, offload, n)
		}
		return
	}
	for start := time.Now(); count() == 0; {
		if time.Since(start) > patience {
			t.Fatalf("%s: %s is not used", st.name, offload)
		}
		if err := st.run(20 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// The same with a kernel at the other end.
func TestStreamsWithKernel(t *testing.T) {
	need.NetNS(t)
	need.TUN(t)
	s := &streams{}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.withKernel(); err != nil {
		t.Fatal(err)
	}
	if err := s.measure(1, 20*time.Millisecond, func(int) {}); err != nil {
		t.Fatal(err)
	}
	checkTable(t, s, 1)
	for i, st := range s.list {
		if strings.Contains(st.name, "slice-to-kernel") {
			used(t, st, "TSO", func() uint64 { return s.slices[i].link.Stats().TxLSO })
		} else {
			used(t, st, "GRO", func() uint64 { return s.slices[i].link.Stats().RxMerged })
		}
	}
}

// checkTable checks for a line per stream in the table, and one per round in the raw lines.
func checkTable(t *testing.T, s *streams, rounds int) {
	t.Helper()
	var table, raw strings.Builder
	if err := printStreams(&table, s.list); err != nil {
		t.Fatal(err)
	}
	rawStreams(&raw, s.list)
	if n := strings.Count(table.String(), "\n"); n != 1+len(s.list) {
		t.Errorf("table of %d lines:\n%s", n, table.String())
	}
	for _, st := range s.list {
		if n := strings.Count(raw.String(), "BenchmarkStream/"+st.name+"-"); n != rounds {
			t.Errorf("%s: %d raw lines", st.name, n)
		}
		for _, m := range st.samples {
			if m.bytes <= 1 || m.wall < 20*time.Millisecond || m.perSecond() <= 0 {
				t.Errorf("%s: %+v", st.name, m)
			}
		}
	}
}
