package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// TestServeFootprint requires an idle server to use little CPU and memory. The figures it logs are
// the machine's at that moment; a server that spins or allocates without bound fails.
func TestServeFootprint(t *testing.T) {
	need.Long(t, "measures memory under load, 4 s")
	need.NetNS(t)
	need.TUN(t)
	s := &script{t: t, dir: t.TempDir()}
	if err := s.enter(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.start([]string{"serve", "http", "--device", "sim"}); err != nil {
		t.Fatal(err)
	}
	if err := s.out.await("^serving HTTP"); err != nil {
		t.Fatal(err)
	}
	client := probe.New(s.net)
	if err := client.Download(t.Context(), "http://192.0.2.10", 1024); err != nil {
		t.Fatal(err)
	}
	t.Logf("first answer %v after the start", time.Since(began).Round(time.Millisecond))
	if err := client.Download(t.Context(), "http://192.0.2.10", 64<<20); err != nil {
		t.Fatal(err)
	}

	pid := s.background.Process.Pid
	before, err := ticks(pid)
	if err != nil {
		t.Fatal(err)
	}
	const window = 3 * time.Second
	<-time.After(window)
	after, err := ticks(pid)
	if err != nil {
		t.Fatal(err)
	}
	share := float64(after-before) / 100 / window.Seconds()
	t.Logf("idle: %.1f %% of a core", 100*share)
	if share > 0.1 {
		t.Errorf("an idle server uses %.0f %% of a core", 100*share)
	}
	resident, err := memory(pid, "VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("resident after 64 MiB served: %d KiB", resident)
	if limit := 64 << 10; resident > limit && !racing.Detector {
		t.Errorf("resident memory is %d KiB, limit %d", resident, limit)
	}
	if err := errors.Join(s.step([]string{"signal", "TERM"}), s.step([]string{"end"}),
		s.step([]string{"code", "0"})); err != nil {
		t.Error(err, s.stderr)
	}
}

// ticks is the processor time of a process, in hundredths of a second.
func ticks(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return user + system, errors.Join(err1, err2)
}

// memory is one line of /proc/PID/status, in KiB.
func memory(pid int, name string) (int, error) {
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(all)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.Atoi(strings.Fields(value)[0])
		}
	}
	return 0, fmt.Errorf("no %s", name)
}
