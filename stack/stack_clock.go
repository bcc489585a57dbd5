package stack

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// netstackRandom has netstack draw from a source of ours. It implements math/rand.Source.
type netstackRandom struct{ random.Source }

// Int63 implements math/rand.Source.
func (r netstackRandom) Int63() int64 { return int64(r.Uint64() >> 1) }

// Seed implements math/rand.Source. It has no effect: the source has its seed.
func (r netstackRandom) Seed(int64) {}

// probeDelay is how long a timer runs that netstack sets for d: 10 ms if that is 1 to 10 ms.
//
// These are for tail loss probes (RFC 8985 section 7), which Netstack sends when no acknowledgement
// has come for two round trips, measured in milliseconds: after 2 ms on a local network. On a busy
// machine, and from a peer that delays acknowledgements, one is often that late. The probe then
// sends up to 64 KiB again, is taken for the sign of a loss when the acknowledgement does come, and
// the timer's goroutine waits for a connection's lock, on which Netstack's TCP goroutine polls
// until it is preempted. (Linux adds 2 jiffies at least, 2 to 20 ms, net/ipv4/tcp_output.c
// tcp_schedule_loss_probe.) Shorter timers are for reordered segments, longer ones for timeouts.
func probeDelay(d time.Duration) time.Duration {
	if d >= shortestProbe && d < probeTime {
		return probeTime
	}
	return d
}

const (
	shortestProbe = time.Millisecond
	probeTime     = 10 * time.Millisecond
)
