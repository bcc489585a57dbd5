package hostmode

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// TestCaptureSees has a kernel answer and reset SYNs over both versions of IP: captures of either
// end have counted that.
func TestCaptureSees(t *testing.T) {
	w := newWorld(t)
	echoServer(t, w.host, ":9000")
	came, sent := watch(t, w.outside), watchSent(t, w.host)
	for _, ip := range []string{hostIP, "[" + hostIPv6 + "]"} {
		c, err := dial(w.outside, ip+":9000")
		must(t, err)
		c.Close()
		if _, err := dial(w.outside, ip+":9001"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("port 9001 of %s: %v", ip, err)
		}
	}
	for _, c := range []*capture{came, sent} {
		for end := time.Now().Add(time.Minute); c.answers(9000) != 2 || c.from(9001) != 2; {
			if time.Now().After(end) {
				t.Fatalf("%d answers and %d RSTs, want 2 and 2", c.answers(9000), c.from(9001))
			}
			time.Sleep(time.Millisecond)
		}
	}
}
