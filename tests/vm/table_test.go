//go:build linux

package vm

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// table has a row per check and a column per kernel.
type table struct {
	rows []string
	mu   sync.Mutex
	cols []string
	cell map[[2]string]string
}

func newTable(checks []check) *table {
	t := &table{cell: map[[2]string]string{}}
	for _, c := range checks {
		t.rows = append(t.rows, c.name)
	}
	return t
}

// set records the result of a check under a kernel.
func (t *table) set(kernel, check string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cols) == 0 || t.cols[len(t.cols)-1] != kernel {
		t.cols = append(t.cols, kernel)
	}
	t.cell[[2]string{kernel, check}] = map[bool]string{true: "yes", false: "NO"}[ok]
}

// run runs a check under a kernel as a subtest, and records the result. A check that is not for the
// kernel, or that time no longer suffices for, has none.
func (t *table) run(parent *testing.T, kernel, check string, takes time.Duration,
	f func(*testing.T)) {
	if !runs(kernel, check) {
		return
	}
	ran := false
	ok := parent.Run(strings.NewReplacer(" ", "-", ",", "").Replace(check), func(s *testing.T) {
		need.That(s, "time", timeFor(s, takes))
		ran = true
		f(s)
	})
	if ran {
		t.set(kernel, check, ok)
	}
}

func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s", "")
	for _, k := range t.cols {
		fmt.Fprintf(&b, "%8s", k)
	}
	for _, r := range t.rows {
		fmt.Fprintf(&b, "\n%-24s", r)
		for _, k := range t.cols {
			v := t.cell[[2]string{k, r}]
			if v == "" {
				v = "-"
			}
			fmt.Fprintf(&b, "%8s", v)
		}
	}
	return b.String()
}
