//go:build linux

package vm

import (
	"fmt"
	"strings"
	"sync"
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
