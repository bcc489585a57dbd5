package stack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ d, want time.Duration }{
		{0, 0}, {-1, -1}, {ms - 1, ms - 1}, {ms, 10 * ms}, {2 * ms, 10 * ms}, {10*ms - 1, 10 * ms},
		{10 * ms, 10 * ms}, {10*ms + 1, 10*ms + 1}, {time.Second, time.Second},
	} {
		if got := probeDelay(c.d); got != c.want {
			t.Errorf("a timer for %v runs for %v, want %v", c.d, got, c.want)
		}
	}
}

// TestStackIsPatient: the stack's timers run for that long.
func TestStackIsPatient(t *testing.T) {
	virtual := clocktest.New()
	s, err := New(new(sink), Config{Clock: virtual.Clock(),
		Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
		Addresses:  []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	must(t, err)
	defer s.Close()
	for _, c := range []struct{ d, want time.Duration }{
		{2 * time.Millisecond, probeTime}, {20 * time.Millisecond, 20 * time.Millisecond},
	} {
		began, ran := virtual.Now(), make(chan struct{})
		s.net.Clock().AfterFunc(c.d, func() { close(ran) })
		virtual.Step()
		<-ran
		if after := virtual.Now().Sub(began); after != c.want {
			t.Errorf("a timer for %v runs for %v, want %v", c.d, after, c.want)
		}
	}
}
