//go:build linux

package hoststack

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack/metrics"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// behaviour is one tested use of a socket.
type behaviour struct {
	name string
	run  func(r *run)
}

// tables are all behaviours, by subject, and the kernel they are compared with.
var tables = []struct {
	subject string
	rows    []behaviour
	kernel  func(*testing.T) *world
}{
	{"tcp listen", tcpListen, kernelWorld},
	{"tcp dial", tcpDial, kernelWorld},
	{"tcp data", tcpData, kernelWorld},
	{"tcp close", tcpClose, kernelWorld},
	{"tcp deadlines", tcpDeadlines, kernelWorld},
	{"udp sockets", udpSockets, kernelWorld},
	{"udp data", udpData, kernelWorld},
	{"udp errors", udpErrors, kernelWorld},
	{"sockets", sharedSockets, kernelWorld},
	{"addresses", hostAddresses, cabledWorld},
	{"groups", udpGroups, cabledWorld},
}

// TestSameAsKernel runs every behaviour in the kernel's world and on stacks with addresses of their
// own, and compares.
func TestSameAsKernel(t *testing.T) {
	need.Long(t, "each case on the kernel and on a slice, 30 s")
	compareAll(t, "addresses of their own", stackWorld, byDesign, 1)
}

// TestHostSameAsKernel does so on stacks on the host's own addresses, one pair for all behaviours.
func TestHostSameAsKernel(t *testing.T) {
	need.Long(t, "each case on the kernel and on the host's own address, 30 s")
	w := hostWorld(t)
	compareAll(t, "the host's own addresses", func(*testing.T) *world { return w }, byDesignOnHost,
		1)
}

// TestHostRingsSameAsKernel does so on the rings of software cards, with every third behaviour, and
// with all of them for make test-host, which sets HOST.
func TestHostRingsSameAsKernel(t *testing.T) {
	need.Long(t, "a third of the cases on the kernel and on rings, 15 s")
	need.TUN(t)
	every := 3
	if os.Getenv("HOST") != "" {
		every = 1
	}
	w := ringsWorld(t)
	compareAll(t, "the host's own addresses, from rings", func(*testing.T) *world { return w },
		byDesignOnHost, every)
	server := w.server.(inside).sockets.(netstack)
	stats, _ := server.HostStats()
	if got := server.LinkStats().Rings.RxPackets; !stats.Rules || got < 10*stats.Unsteered {
		t.Errorf("%d frames of the server came by its rings, %d otherwise", got, stats.Unsteered)
	}
}

// TestHostXDPSameAsKernel does so on AF_XDP, with every third behaviour, and with all of them for
// make test-host.
func TestHostXDPSameAsKernel(t *testing.T) {
	need.Long(t, "a third of the cases on the kernel and on AF_XDP, 15 s")
	need.Root(t)
	every := 3
	if os.Getenv("HOST") != "" {
		every = 1
	}
	w := xdpWorld(t)
	compareAll(t, "the host's own addresses, through AF_XDP",
		func(*testing.T) *world { return w }, byDesignOnHost, every)
	server := w.server.(inside).sockets.(netstack)
	if got := metrics.BackendOf(server.Stack); got != "xdp" {
		t.Errorf("the backend is called %s", got)
	}
	st := server.PacketPort().Stats()
	if st.XDP == nil || st.Rx[0].Frames < 10*st.Rx[1].Frames {
		t.Errorf("the server's frames came by other sockets than AF_XDP: %+v", st)
	}
}

// kernelNotes is what the kernel's world has shown, by behaviour.
var kernelNotes = map[string][]string{}

// compareAll compares one in every so many behaviours. on says which addresses the stacks have,
// reasons why one differs.
func compareAll(t *testing.T, on string, open func(*testing.T) *world, reasons map[string]string,
	every int) {
	compared, differ, seen := 0, 0, 0
	for _, table := range tables {
		for _, b := range table.rows {
			name := table.subject + "/" + b.name
			if seen++; seen%every != 0 {
				continue
			}
			compared++
			t.Run(name, func(t *testing.T) {
				want, known := kernelNotes[name]
				if !known {
					want = observe(t, table.kernel(t), b, "")
					kernelNotes[name] = want
				}
				if compare(t, reasons[name], want, observe(t, open(t), b, reasons[name])) {
					differ++
				}
			})
		}
	}
	need.Note(t, fmt.Sprintf("compared %d of %d behaviours with the kernel's sockets, on %s: %d "+
		"differ; %d of all do by design (tests/conformance/hoststack/bydesign_test.go)",
		compared, seen, on, differ, len(reasons)))
	for name := range reasons {
		if !known(name) {
			t.Errorf("byDesign names %q, which is no behaviour", name)
		}
	}
}

func known(name string) bool {
	for _, table := range tables {
		for _, b := range table.rows {
			if table.subject+"/"+b.name == name {
				return true
			}
		}
	}
	return false
}

// compare reports whether a behaviour differs, and fails the test if there is no reason for it.
func compare(t *testing.T, reason string, want, got []string) (differs bool) {
	differs = !slices.Equal(want, got)
	switch {
	case differs && reason == "":
		t.Errorf("differs from the kernel:\n%s", diff(want, got))
	case differs:
		t.Logf("differs by design: %s\n%s", reason, diff(want, got))
	case reason != "":
		t.Errorf("byDesign has a reason for a difference, but there is none: %s", reason)
	}
	if len(want) == 0 && !t.Failed() {
		t.Error("the behaviour noted nothing")
	}
	return differs
}

// observe runs b in w and returns its notes. reason is why it differs by design, or "".
func observe(t *testing.T, w *world, b behaviour, reason string) []string {
	r := &run{world: w, notes: notes{world: w, names: map[string]string{}}, differs: reason != ""}
	t.Run(w.name, func(t *testing.T) {
		r.T = t
		defer func() {
			if p := recover(); p != nil && p != any(cannotGoOn{}) {
				panic(p)
			}
		}()
		b.run(r)
	})
	return r.lines
}

// cannotGoOn ends a behaviour that differs by design.
type cannotGoOn struct{}

// diff shows both lists, marking what differs.
func diff(kernel, stack []string) string {
	var b strings.Builder
	for i := range max(len(kernel), len(stack)) {
		k, s := line(kernel, i), line(stack, i)
		if k == s {
			b.WriteString("  both   " + k + "\n")
			continue
		}
		b.WriteString("- kernel " + k + "\n+ stack  " + s + "\n")
	}
	return b.String()
}

func line(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "(nothing)"
}
