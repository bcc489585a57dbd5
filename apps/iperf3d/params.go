package iperf3d

import (
	"fmt"
	"time"
)

// params holds the client's, with iperf3's names. Those that only concern the client are left out.
type params struct {
	TCP           bool    `json:"tcp"`
	UDP           bool    `json:"udp"`
	SCTP          bool    `json:"sctp"`
	Omit          int     `json:"omit"` // seconds that are not counted
	Time          int     `json:"time"` // seconds; 0 with Num or Blocks
	Parallel      int     `json:"parallel"`
	Reverse       int     `json:"-"`
	Bidirectional int     `json:"-"`
	Len           int     `json:"len"`       // bytes of a write or datagram
	Bandwidth     float64 `json:"bandwidth"` // bit/s per stream, 0: unlimited
	NoDelay       bool    `json:"-"`
	Counters64    bool    `json:"-"`

	// Older clients send numbers, newer ones truth values.
	RawReverse       any `json:"reverse"`
	RawBidirectional any `json:"bidirectional"`
	RawNoDelay       any `json:"nodelay"`
	RawCounters64    any `json:"udp_counters_64bit"`
}

// Limits of a client's parameters.
const (
	maxStreams  = 128
	maxBlock    = 1 << 20
	maxDatagram = 65507
	maxTime     = 24 * time.Hour
	maxSeconds  = int(maxTime / time.Second)
	overtime    = 30 * time.Second // that a test may exceed the time its client gave
	maxPause    = 10 * time.Second
)

// Sizes of a write when the client names none.
const (
	defaultBlock    = 128 << 10
	defaultDatagram = 1460
)

// normalise fills in defaults and refuses what the server does not support.
func (p *params) normalise() error {
	p.Reverse, p.Bidirectional = parseBool(p.RawReverse), parseBool(p.RawBidirectional)
	p.NoDelay, p.Counters64 = parseBool(p.RawNoDelay) != 0, parseBool(p.RawCounters64) != 0
	if p.Parallel == 0 {
		p.Parallel = 1
	}
	limit := maxBlock
	if p.UDP {
		limit = maxDatagram
	}
	switch {
	case p.SCTP:
		return fmt.Errorf("SCTP is not supported: leave out --sctp")
	case p.Parallel < 0 || p.Parallel > maxStreams:
		return fmt.Errorf("%d parallel streams: 1 to %d are possible", p.Parallel, maxStreams)
	case p.Len < 0 || p.Len > limit:
		return fmt.Errorf("blocks of %d bytes: at most %d are possible", p.Len, limit)
	case p.Time < 0 || p.Omit < 0 || p.Time > maxSeconds || p.Omit > maxSeconds-p.Time:
		return fmt.Errorf("a test of %d s after %d s: at most %v is possible", p.Time, p.Omit,
			maxTime)
	}
	if p.Len == 0 {
		p.Len = defaultBlock
		if p.UDP {
			p.Len = defaultDatagram
		}
	}
	if p.UDP {
		p.Len = max(p.Len, udpHeader64)
	}
	return nil
}

// timeLimit returns the time limit of the streams: the client's, or the maximum for tests of a
// number of bytes.
func (p *params) timeLimit() time.Duration {
	if p.Time == 0 {
		return maxTime + overtime
	}
	return time.Duration(p.Time+p.Omit)*time.Second + overtime
}

// writePause returns the time between two writes of a stream at the rate in the client's
// parameters.
func (p *params) writePause() time.Duration {
	if p.Bandwidth <= 0 {
		return 0
	}
	return time.Duration(min(float64(p.Len)*8/p.Bandwidth,
		maxPause.Seconds()) * float64(time.Second))
}

// parseBool returns 1 for true and for any number but 0.
func parseBool(v any) int {
	switch v := v.(type) {
	case bool:
		if v {
			return 1
		}
	case float64:
		if v != 0 {
			return 1
		}
	}
	return 0
}

// streamPlan returns how many there will be, and which of them, in the order of their creation, the
// server sends on.
func (p *params) streamPlan() (n int, sends func(i int) bool) {
	switch {
	case p.Bidirectional != 0:
		return 2 * p.Parallel, func(i int) bool { return i >= p.Parallel }
	case p.Reverse != 0:
		return p.Parallel, func(int) bool { return true }
	default:
		return p.Parallel, func(int) bool { return false }
	}
}
