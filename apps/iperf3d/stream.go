package iperf3d

import (
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// stream describes one flow of a test in one direction. Its pump writes the counters, the session
// reads them.
type stream struct {
	id    int
	sends bool

	bytes   atomic.Int64
	packets atomic.Int64 // UDP
	errors  atomic.Int64 // UDP: lost
	late    atomic.Int64 // UDP: out of order
	jitter  atomic.Int64 // UDP, ns

	// up to the end of the omitted time; owned by the session
	omitted struct{ bytes, packets, errors int64 }
	run     func(s *stream, stop <-chan struct{})
	close   func()
}

// streamID numbers streams as iperf3 does: 1, 3, 4, 5 ...
func streamID(i int) int {
	if i == 0 {
		return 1
	}
	return i + 2
}

// discardCounts discards the counts so far.
func (s *stream) discardCounts() {
	s.omitted.bytes, s.omitted.packets, s.omitted.errors = s.bytes.Load(),
		s.packets.Load(), s.errors.Load()
}

// pacer spaces writes so that their sum keeps to a rate.
type pacer struct {
	clock         clock.Clock
	bitsPerSecond float64 // 0: unlimited
	start         time.Time
}

// newPacer returns a pacer that starts now.
func newPacer(bitsPerSecond float64, c clock.Clock) pacer {
	return pacer{c, bitsPerSecond, c.Now()}
}

// waitUntilDue blocks until sent bytes are due, or stop is closed; it reports whether to continue.
func (p *pacer) waitUntilDue(sent int64, stop <-chan struct{}) bool {
	select {
	case <-stop:
		return false
	default:
	}
	if p.bitsPerSecond <= 0 {
		return true
	}
	seconds := min(float64(sent)*8/p.bitsPerSecond, (2 * maxTime).Seconds())
	early := p.clock.Until(p.start.Add(time.Duration(seconds * float64(time.Second))))
	if early <= 0 {
		return true
	}
	t := p.clock.NewTimer(early)
	defer t.Stop()
	select {
	case <-stop:
		return false
	case <-t.C:
		return true
	}
}
