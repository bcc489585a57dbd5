//go:build linux

package hoststack

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
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

// TestSameAsKernel runs every behaviour in both worlds and compares.
func TestSameAsKernel(t *testing.T) {
	need.Long(t, "each case on the kernel and on a slice, 30 s")
	compared, differ := 0, 0
	for _, table := range tables {
		for _, b := range table.rows {
			name := table.subject + "/" + b.name
			compared++
			t.Run(name, func(t *testing.T) {
				if compare(t, name, table.kernel(t), b) {
					differ++
				}
			})

		}
	}
	need.Note(t,
		fmt.Sprintf("compared %d behaviours with the kernel's sockets: %d differ, %d of them by "+
			"design (tests/hoststack/bydesign_test.go)",
			compared, differ, len(byDesign)))
	for name := range byDesign {
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
func compare(t *testing.T, name string, kernel *world, b behaviour) (differs bool) {
	want := observe(t, kernel, b)
	got := observe(t, stackWorld(t), b)
	differs = !slices.Equal(want, got)
	reason := byDesign[name]
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

// observe runs b in w and returns its notes.
func observe(t *testing.T, w *world, b behaviour) []string {
	var lines []string
	t.Run(w.name, func(t *testing.T) {
		r := &run{T: t, world: w, notes: notes{world: w, names: map[string]string{}}}
		b.run(r)
		lines = r.lines
	})
	return lines
}

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
