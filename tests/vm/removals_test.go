//go:build linux

package vm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// The device taken away and given back again and again, as some clouds do with virtual functions.

// removalPeriod is that of 900 removals an hour.
const removalPeriod = 4 * time.Second

// fewRemovals is how many the machine of the outages has.
const fewRemovals = 10

// growth is by how much the server's memory may differ between the first third of the removals and
// the last, in KiB: what the garbage collector leaves to chance.
const growth = 12 << 10

// TestRemovals has removals for as long as REMOVALS says. It is not a part of make test.
func TestRemovals(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("REMOVALS"))
	if err != nil {
		need.That(t, "removals", fmt.Errorf("make test-vm-removals runs it, in 12 minutes: %w",
			err))
	}
	need.TUN(t)
	ctx, p := t.Context(), gather(t, t.Context())
	p.second = (*world).addStandby
	w := boot(t, ctx, p, cmp.Or(os.Getenv("KERNEL"), "6.12"), simnic.Config{}, pcie.Config{})
	testProbe(t, w)
	w.pairStandby(t)
	s := w.serve(t, "http", "--debug-endpoints", "--min-rate", minRate)
	l := w.clientsOf(t, slice4.Addr().String()+":80", bodies, requesters)
	w.removals(t, s, l, length)
	l.stop()
	s.stop(t)
	w.noComplaints(t)
}

// held is what the server has in use.
type held struct{ rss, fds, mkeys int } // rss in KiB; memory keys are all of the device's

// removals takes the device away and gives it back for as long as length says, under a server with
// clients: no connection is lost, and what the server holds does not grow.
func (w *world) removals(t *testing.T, s *server, l *clients, length time.Duration) {
	t.Helper()
	l.progress(t, "before the removals")
	pid := w.pidOf(t, "rdma-netstack")
	all := []held{w.holds(t, pid)}
	returned, began := 0, time.Now()
	tick := time.NewTicker(removalPeriod)
	defer tick.Stop()
	for end := began.Add(length); time.Now().Before(end); {
		pciRemoval.leave(t, w)
		before := w.nic.Counters().Slice.TxPackets
		pciRemoval.back(t, w)
		<-tick.C
		if err := l.losses(); err != nil {
			t.Fatalf("after %d removals: %v; the server counts %+v and says:\n%s", len(all), err,
				w.counts(t), w.output(t, s.job))
		}
		all = append(all, w.holds(t, pid))
		if w.nic.Counters().Slice.TxPackets > before {
			returned++
		}
	}
	took := time.Since(began)
	w.appeared(t)
	frames := w.nic.Counters().Slice.TxPackets
	eventually(t, func() string { return "frames of ours from the rings" },
		func() bool { return w.nic.Counters().Slice.TxPackets > frames })
	l.progress(t, "after the removals")
	all = append(all, w.holds(t, pid))
	w.forgiveDoorbells(t)
	third := max(len(all)/3, 1)
	early, late := medianRSS(all[:third]), medianRSS(all[len(all)-third:])
	t.Logf("%d removals in %v, %.0f an hour; the rings were back before %d of the next; at the "+
		"start, in the middle, at the end: %+v, %+v, %+v; median RSS of the first third %d KiB, "+
		"of the last %d KiB; longest pause of a client %v", len(all)-2, took.Round(time.Second),
		float64(len(all)-2)/took.Hours(), returned, all[0], all[len(all)/2], all[len(all)-1],
		early, late, time.Duration(l.gap.Load()).Round(time.Millisecond))
	t.Logf("the server counts %+v", w.counts(t))
	if late > early+growth {
		t.Errorf("the server's memory grows: %v", all)
	}
	if a, b := all[0], all[len(all)-1]; a.mkeys != b.mkeys || b.fds > a.fds {
		t.Errorf("the server holds %+v, before the removals %+v", b, a)
	}
	if t.Failed() {
		t.Logf("the server says:\n%s", w.output(t, s.job))
	}
}

// counts is what the server counts of its clients.
func (w *world) counts(t *testing.T) (c httpd.Counters) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: w.outside.DialContext}, Timeout: patience}
	r, err := client.Get(url(slice4, 80) + "/-/status.json")
	if err != nil {
		t.Errorf("ask the server: %v", err)
		return c
	}
	defer r.Body.Close()
	var page struct {
		Server httpd.Counters `json:"server"`
	}
	if err := json.NewDecoder(r.Body).Decode(&page); err != nil {
		t.Error(err)
	}
	return page.Server
}

func medianRSS(all []held) int {
	sorted := slices.SortedFunc(slices.Values(all),
		func(a, b held) int { return cmp.Compare(a.rss, b.rss) })
	return sorted[len(sorted)/2].rss
}

// pidOf is the process of that name in the guest.
func (w *world) pidOf(t *testing.T, name string) string {
	t.Helper()
	all := w.must(t, rig.Request{Op: "glob", Path: "/proc/[0-9]*/comm"}).Output
	for _, path := range strings.Fields(all) {
		r, err := w.vm.Do(rig.Request{Op: "read", Path: path})
		if err == nil && strings.TrimSpace(r.Output) == name {
			return filepath.Base(filepath.Dir(path))
		}
	}
	t.Fatalf("no process %s in the guest", name)
	return ""
}

// holds is what a process of the guest has in use.
func (w *world) holds(t *testing.T, pid string) (h held) {
	t.Helper()
	for line := range strings.Lines(w.must(t,
		rig.Request{Op: "read", Path: "/proc/" + pid + "/status"}).Output) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			h.rss, _ = strconv.Atoi(f[1])
		}
	}
	if h.rss == 0 {
		t.Fatalf("process %s has ended", pid)
	}
	h.fds = len(strings.Fields(w.must(t,
		rig.Request{Op: "glob", Path: "/proc/" + pid + "/fd/*"}).Output))
	h.mkeys = w.fn.Resources()["mkeys"]
	return h
}
