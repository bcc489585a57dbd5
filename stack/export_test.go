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

// Servers are the resolvers in use.
func (s *Stack) Servers() []netip.Addr { return s.dns.servers() }
