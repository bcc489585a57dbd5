package stack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

// defaultAddressTimeout is Config.AddressTimeout's.
const defaultAddressTimeout = 15 * time.Second

// configure asks the network for what cfg wants of it, and starts what keeps it up to date.
func (s *Stack) configure() error {
	cause := fmt.Errorf("no answer in %v; give an address yourself, or set AddressTimeout", s.cfg.AddressTimeout)
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.cfg.AddressTimeout, cause)
	defer cancel()
	if s.news != nil {
		s.background.Go(func() { s.follow(s.news) })
	}
	if s.cfg.DHCPv4 {
		d, err := newDHCP4(s)
		if err != nil {
			return err
		}
		l, err := d.acquire(ctx)
		if err != nil {
			d.conn.Close()
			return err
		}
		s.background.Go(func() { d.keep(l) })
	}
	if s.cfg.DHCPv6 {
		d, err := newDHCP6(s)
		if err != nil {
			return err
		}
		l, err := d.acquire(ctx)
		if err != nil {
			d.conn.Close()
			return err
		}
		s.background.Go(func() { d.keep(l) })
	}
	if s.cfg.SLAAC {
		return s.awaitRouter(ctx)
	}
	return nil
}

// awaitRouter waits until a router's prefixes and routes are in use. A link without routers is no error: what it advertises is
// taken into use when one appears.
func (s *Stack) awaitRouter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, routerWait)
	defer cancel()
	tick := time.NewTicker(routerPoll)
	defer tick.Stop()
	for !s.routed() {
		select {
		case <-ctx.Done():
			s.log.Warn("no router has advertised a prefix", "interface", s.name)
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// routed says whether a router's routes are in use, and an address of its prefix unless it leaves that to DHCPv6.
func (s *Stack) routed() bool {
	if !s.learned.router(fromRA) {
		return false
	}
	if s.news.config() == ipv6.DHCPv6ManagedAddress {
		return true
	}
	return slices.ContainsFunc(s.Addrs(), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && !s.static(p)
	})
}

// routerWait is three router solicitations, 4 s apart at most, and an answer (RFC 4861 section 10).
const routerWait, routerPoll = 5 * time.Second, 20 * time.Millisecond
