package hostmode

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// firstOfMany names the port of the first of many listeners.
const firstOfMany = 20000

// TestManyListeners opens and closes thousands of listeners, which other processes of the host can
// have the ports of afterwards. What a listener costs does not grow with their number: of 1,000 and
// 4,000 opened in turns the log has the times.
func TestManyListeners(t *testing.T) {
	const visited = 60 // that have had a connection
	w := newWorld(t)
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
}
