//go:build linux

package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Package dv without a stack, on a real kernel's device node: rings, events, RSS, offloads.

// bareSlice is the echo program in the guest.
type bareSlice struct {
	w      *world
	job    int
	opened rig.SliceReport
}

// slice starts the echo program and waits until it is open.
func (w *world) slice(t *testing.T, args ...string) *bareSlice {
	t.Helper()
	return w.sliceBy(t, append([]string{"/init", "slice", "-mac", sliceMAC}, args...))
}

// sliceBy starts the echo program with this command line.
func (w *world) sliceBy(t *testing.T, argv []string) *bareSlice {
	t.Helper()
	s := &bareSlice{w: w, job: w.start(t, argv...)}
	var out string
	eventually(t, func() string { return "the slice says: " + out }, func() bool {
		out = w.output(t, s.job)
		return strings.HasSuffix(out, "}\n")
	})
	s.opened = report(t, out)
	w.neighbours(t)
	return s
}

// report decodes the last line printed.
func report(t *testing.T, out string) (r rig.SliceReport) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("%v in the report of the slice:\n%s", err, out)
	}
	return r
}

// now asks the program for a report.
func (s *bareSlice) now(t *testing.T) rig.SliceReport {
	t.Helper()
	out := s.w.output(t, s.job)
	before := strings.Count(out, "\n")
	s.w.must(t, rig.Request{Op: "signal", Job: s.job, Signal: int(unix.SIGUSR1)})
	eventually(t, func() string { return "a report: " + out }, func() bool {
		out = s.w.output(t, s.job)
		return strings.Count(out, "\n") > before && strings.HasSuffix(out, "}\n")
	})
	return report(t, out)
}

// stop ends the program and returns its last report.
func (s *bareSlice) stop(t *testing.T) rig.SliceReport {
	t.Helper()
	r, err := s.w.vm.Do(rig.Request{Op: "stop", Job: s.job, Signal: 15, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Fatalf("the slice ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
	return report(t, r.Output)
}

// neighbours adds the slice's link address to the neighbour tables outside: without a stack, ARP
// requests get no answer. The entries are removed when the test ends.
func (w *world) neighbours(t *testing.T) {
	t.Helper()
	mac, err := net.ParseMAC(sliceMAC)
	if err != nil {
		t.Fatal(err)
	}
	each := func(do func(*netlink.Neigh) error) error {
		return w.outside.Do(func() error {
			link, err := netlink.LinkByName("wire0")
			if err != nil {
				return err
			}
			for _, p := range []netip.Prefix{slice4, slice6} {
				n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: p.Addr().AsSlice(), HardwareAddr: mac}
				if err := do(n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := each(netlink.NeighSet); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { each(netlink.NeighDel) })
}

// Flows of the echo test, and the number of segments into which the NIC cuts each packet.
const flows, segments = 32, 20

// testOpen opens two receive and two send queues and echoes datagrams of many flows.
func testOpen(t *testing.T, w *world) {
	before, interrupts := w.nic.Counters(), w.interrupts(t, "mlx5_comp")
	s := w.slice(t, "-segments", fmt.Sprint(segments))
	o := s.opened
	if o.Name != "mlx5_0" || o.Netdev != "eth0" || o.MAC != sliceMAC ||
		o.Rx != 2 || o.Tx != 2 || !o.LinkUp {
		t.Errorf("opened %+v", o)
	}
	if c := o.Caps; c.Firmware != w.nic.Card().FirmwareVersion() || !c.TxCsum ||
		!c.RxCsum || c.MaxTSO < 1<<16 ||
		!c.SharedMulticast || c.MaxRxQueues < 2 {
		t.Errorf("capabilities %+v", c)
	}
	for _, to := range []netip.Prefix{slice4, slice6} {
		w.datagrams(t, to.Addr())
	}
	r := s.stop(t)
	after := w.nic.Counters()
	checkSpread(t, r)
	if r.Echoed != 2*flows || r.Astray != 0 || r.Unverified != 0 {
		t.Errorf("%d datagrams echoed, %d came on the wrong queue, the NIC did not verify %d",
			r.Echoed, r.Astray, r.Unverified)
	}
	if n := after.LSOWQEs - before.LSOWQEs; n != 2*flows {
		t.Errorf("the NIC was given %d packets to cut, want %d", n, 2*flows)
	}
	if n, want := after.Slice.TxPackets-before.Slice.TxPackets,
		uint64(2*flows*(segments+1)); n != want {
		t.Errorf("%d packets left the slice, want %d", n, want)
	}
	if n := after.ChecksumWQEs - before.ChecksumWQEs; n < 4*flows {
		t.Errorf("%d packets left their checksums to the NIC, want at least %d", n, 4*flows)
	}
	if n := w.interrupts(t, "mlx5_comp") - interrupts; n == 0 {
		t.Error("no completion interrupt in the guest")
	}
}

// checkSpread checks that every queue was used, by events, and that nothing was lost.
func checkSpread(t *testing.T, r rig.SliceReport) {
	t.Helper()
	for i, q := range r.Stats.Rx {
		if q.Packets == 0 || q.Events == 0 || q.Resets != 0 || q.Drops.Error != 0 {
			t.Errorf("receive queue %d: %+v", i, q)
		}
	}
	zeroCopy := uint64(0)
	for i, q := range r.Stats.Tx {
		zeroCopy += q.ZeroCopy
		if q.Packets == 0 || q.LSO == 0 || q.Completions == 0 || q.Drops.Lost+q.Drops.Refused != 0 {
			t.Errorf("send queue %d: %+v", i, q)
		}
	}
	if zeroCopy == 0 {
		t.Error("no frame was sent without copying")
	}
}

// interrupts returns the sum of the guest's interrupts whose names start with that prefix.
func (w *world) interrupts(t *testing.T, name string) (sum int) {
	t.Helper()
	for line := range strings.Lines(w.must(t,
		rig.Request{Op: "read", Path: "/proc/interrupts"}).Output) {
		f := strings.Fields(line)
		if !slices.ContainsFunc(f, func(s string) bool { return strings.HasPrefix(s, name) }) {
			continue
		}
		for _, s := range f[1:] {
			n, err := strconv.Atoi(s)
			if err != nil {
				break
			}
			sum += n
		}
	}
	return sum
}
