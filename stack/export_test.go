package stack

import (
	"net/netip"
	"time"
)

// WithRenewal is cfg with another least time between renewals of a lease.
func WithRenewal(cfg Config, least time.Duration) Config {
	cfg.renewal = least
	return cfg
}

// WithDeclineWait is cfg with another time between a DECLINE and the next DISCOVER.
func WithDeclineWait(cfg Config, wait time.Duration) Config {
	cfg.declineWait = wait
	return cfg
}

// WithOrphanRate is cfg with another least rate at which a closed connection's peer must receive
// what is left, in bytes per second.
func WithOrphanRate(cfg Config, rate int) Config {
	cfg.orphanRate = rate
	return cfg
}

// DeclineWait is that time.
const DeclineWait = declineWait

// Rounds is how often a test repeats what costs ten times as much with the race detector, which
// sees as much in two rounds.
func Rounds(n int) int {
	if raceDetector {
		return min(n, 2)
	}
	return n
}

// Servers are the resolvers in use.
func (s *Stack) Servers() []netip.Addr { return s.dns.servers() }

// LinkIsUp is what a stack does when its link is there again.
func (s *Stack) LinkIsUp() { s.linkIsUp() }
