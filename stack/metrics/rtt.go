package metrics

import (
	"strconv"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// rttBounds are the upper ends of the histogram's buckets, in seconds. Smaller ones tell nothing:
// netstack measures in microseconds and Linux' delayed ACK takes 40 ms.
var rttBounds = [...]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
	0.25, 0.5, 1, 2.5}

// lookPause gives the shortest time between two looks at the connections.
const lookPause = time.Second

// rtt holds the histogram of smoothed round-trip times. Any goroutine may use it.
type rtt struct {
	mu      sync.Mutex // guards what follows
	last    time.Time  // of the last look
	buckets [len(rttBounds)]uint64
	count   uint64
	sum     time.Duration
}

// sampleRTTs adds each connection whose round-trip time is known, unless somebody looked just now.
func (r *rtt) sampleRTTs(sockets []stack.Socket, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() && now.Sub(r.last) < lookPause {
		return
	}
	r.last = now
	for _, s := range sockets {
		if s.TCP == nil || s.TCP.RTT == 0 || s.State == "TIME-WAIT" {
			continue
		}
		seconds := s.TCP.RTT.Seconds()
		r.count++
		r.sum += s.TCP.RTT
		for i, bound := range rttBounds {
			if seconds <= bound {
				r.buckets[i]++
			}
		}
	}
}

func (r *rtt) write(p *page) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bucket := func(n uint64, le string) sample {
		s := of(n, "le", le)
		s.suffix = "_bucket"
		return s
	}
	var all []sample
	for i, bound := range rttBounds {
		all = append(all, bucket(r.buckets[i], strconv.FormatFloat(bound, 'g', -1, 64)))
	}
	sum, count := fraction(r.sum.Seconds()), of(r.count)
	sum.suffix, count.suffix = "_sum", "_count"
	p.family(histogram, "tcp_rtt_seconds",
		"Smoothed round-trip times of the connections, each looked at once per scrape.",
		append(all, bucket(r.count, "+Inf"), sum, count)...)
}
