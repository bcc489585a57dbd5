package hostmode

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// firstOfMany names the port of the first of many listeners.
const firstOfMany = 20000

// TestManyListeners opens and closes thousands of listeners, which other processes of the host can
// have the ports of afterwards. What a listener costs does not grow with their number: of 1,000 and
// 4,000 opened in turns the log has the times. Linux 6.18 would lose its worker threads if each of
// these had a filter of its own and all were freed at once: see backing.Filters.
func TestManyListeners(t *testing.T) {
	const visited = 60 // that have had a connection
	w := newWorld(t)
	eventually(t, "the kernel's workers work", workersWork)
	s := w.start(t)
	for _, n := range []int{1000, 4000, 1000, 4000} {
		said := s.ok(fmt.Sprintf("many %s %d", hostIP, n))
		if !strings.HasPrefix(said, fmt.Sprint(n, " listed")) {
			t.Errorf("of %d listeners %s", n, said)
		}
		port := func(i int) int { return firstOfMany + i*(n-1)/(visited-1) }
		must(t, each(visited, 8, func(i int) error {
			c, err := dial(w.outside, fmt.Sprintf("%s:%d", hostIP, port(i)))
			if err != nil {
				return err
			}
			return visit(c, "stack", i, 100)
		}))
		began := time.Now()
		s.ok("close")
		t.Logf("%d listeners: %s, closed in %v", n, said, time.Since(began))
		for i := range visited {
			eventually(t, "the port is the kernel's", func() bool { return w.free(t, port(i)) })
		}
	}
	s.stop()
	eventually(t, "the kernel's workers still work", workersWork)
}

// workersWork reports whether no worker thread of the kernel waits where nothing ends it (state D
// of proc_pid_stat(5)). One that does work of its own may do so for a moment.
func workersWork() bool {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if bytes.Contains(stat, []byte("(kworker/")) && bytes.Contains(stat, []byte(") D ")) {
			return false
		}
	}
	return true
}
