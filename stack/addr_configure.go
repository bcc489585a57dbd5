package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

// defaultAddressTimeout is the default of Config.AddressTimeout.
const defaultAddressTimeout = 15 * time.Second

// configure asks the network for the addresses that cfg wants from it, and starts the goroutines
// that keep them. ctx bounds the first part.
func (s *Stack) configure(ctx context.Context) error {
	if s.cfg.SLAAC {
		s.background.Go(func() { s.follow(s.raEvents) })
	}
	limited, cancel := s.clock.WithTimeoutCause(ctx, s.cfg.AddressTimeout, s.unanswered())
	defer cancel()
	if err := s.ask(limited); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for a router, or for the other IP version, on %s: %w",
			s.name, context.Cause(ctx))
	}
	return nil
}

// ask asks the sources that cfg names for addresses.
func (s *Stack) ask(ctx context.Context) error {
	if s.cfg.Auto {
		return s.auto(ctx)
	}
	if s.cfg.DHCPv4 {
		if err := s.acquireLease(ctx, newDHCP4); err != nil {
			return err
		}
	}
	if s.cfg.DHCPv6 {
		if err := s.acquireLease(ctx, newDHCP6); err != nil {
			return err
		}
	}
	if s.cfg.SLAAC {
		return s.awaitRouter(ctx)
	}
	return nil
}

// dynamic says whether c asks the network for addresses.
func (c Config) dynamic() bool { return c.Auto || c.DHCPv4 || c.DHCPv6 || c.SLAAC }

// unanswered is why there is no address, with what helps.
func (s *Stack) unanswered() error {
	if up, _ := s.port(); !up {
		return errors.New("the port's link is down")
	}
	hint := ""
	if s.netdev != nil && len(s.netdev.Subnets) > 0 {
		hint = fmt.Sprintf(" in one of the networks of %s, %v", s.netdev.Netdev, s.netdev.Subnets)
	}
	return fmt.Errorf("no answer in %v; give an address yourself%s, or set AddressTimeout",
		s.cfg.AddressTimeout, hint)
}

// auto asks DHCPv4 servers and routers at the same time, for as long as the stack lives, and DHCPv6
// servers when a router says so. It returns when there is an address of each IP version, or of one
// and otherVersion has passed. Later answers are taken into use when they come.
func (s *Stack) auto(ctx context.Context) error {
	s.acquireLeaseLater(newDHCP4)
	tick := s.clock.NewTimer(routerPoll)
	defer tick.Stop()
	var first time.Time // when there was an address of one version
	for {
		v4, v6 := s.provided()
		switch {
		case v4 && v6, (v4 || v6) && !first.IsZero() && s.clock.Since(first) > otherVersion:
			return nil
		case (v4 || v6) && first.IsZero():
			first = s.clock.Now()
		}
		select {
		case <-tick.C:
			tick.Reset(routerPoll)
		case <-ctx.Done():
			if v4 || v6 {
				return nil
			}
			return fmt.Errorf("%w, and no router a prefix, on %s: %w", ErrNoLease,
				s.name, context.Cause(ctx))
		}
	}
}

// acquireLeaseLater is acquireLease in the background.
func (s *Stack) acquireLeaseLater(open func(*Stack) (dhcpClient, error)) {
	s.background.Go(func() {
		if err := s.acquireLease(s.ctx, open); err != nil && s.ctx.Err() == nil {
			s.log.Warn("ask for an address", "interface", s.name, "error", err)
		}
	})
}

// provided says of which IP versions there is an address, given by cfg or by the network, with its
// routes.
func (s *Stack) provided() (v4, v6 bool) {
	v4, ra := s.autoconf.hasRoutes(fromDHCPv4), s.autoconf.hasRoutes(fromRA)
	for _, p := range s.Addrs() {
		v4 = v4 || p.Addr().Is4() && s.static(p)
		v6 = v6 || p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && (ra || s.static(p))
	}
	return v4, v6
}

// awaitRouter waits until a router's prefixes and routes are in use. A link without routers is no
// error: what it advertises is taken into use when one appears.
func (s *Stack) awaitRouter(ctx context.Context) error {
	ctx, cancel := s.clock.WithTimeout(ctx, routerWait)
	defer cancel()
	for !s.routed() {
		if s.clock.Sleep(ctx, routerPoll) != nil {
			s.log.Warn("no router has advertised a prefix", "interface", s.name)
			return nil
		}
	}
	return nil
}

// routed says whether a router's routes are in use, and an address of its prefix unless it leaves
// that to DHCPv6.
func (s *Stack) routed() bool {
	if !s.autoconf.hasRouter(fromRA) {
		return false
	}
	if s.raEvents.config() == ipv6.DHCPv6ManagedAddress {
		return true
	}
	return slices.ContainsFunc(s.Addrs(), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && !s.static(p)
	})
}

// routerWait is three router solicitations, 4 s apart at most, and an answer (RFC 4861 section 10).
const routerWait, routerPoll = 5 * time.Second, 20 * time.Millisecond

// otherVersion is how long one IP version waits for the other: routers answer a solicitation within
// 0.5 s, and detecting duplicates takes as long as Config says.
const otherVersion = 2 * time.Second
