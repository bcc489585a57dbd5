package stack

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// netdevConfig is how Linux has configured the port's netdev, as it was when the stack was opened.
type netdevConfig struct {
	dv.Network
	dns []netip.Addr
}

// readNetdevConfig reads how Linux has configured the port, and completes cfg's addresses with the
// lengths of its subnets. The result is nil if cfg uses nothing else of it.
func readNetdevConfig(cfg *Config) (*netdevConfig, error) {
	incomplete := slices.IndexFunc(cfg.Addresses, lacksLength)
	found, err := dv.NetworkOf(cfg.NIC)
	if err != nil {
		if incomplete >= 0 {
			return nil, fmt.Errorf("%w; there is no Linux interface to take it from: %w",
				withoutLength(cfg.Addresses[incomplete].Addr()), err)
		}
		return nil, nil // there is nothing to know
	}
	linux := &netdevConfig{Network: found}
	if cfg.Addresses, err = linux.complete(*cfg); err != nil {
		return nil, err
	}
	if incomplete < 0 && !cfg.Auto {
		return nil, nil
	}
	return linux, nil
}

// complete gives addresses without a prefix length that of their subnet, and refuses addresses of
// the netdev itself.
func (l *netdevConfig) complete(cfg Config) ([]netip.Prefix, error) {
	shared := cfg.NIC.AllowNetdevMAC || cfg.NIC.Promiscuous // Linux is to lose what it has
	all := slices.Clone(cfg.Addresses)
	for i, p := range all {
		a := p.Addr()
		if slices.Contains(l.Addresses, a) && !shared {
			return nil,
				fmt.Errorf("address %s is Linux's own on %s: %w; give the slice one of its own", a,
					l.Netdev, ErrDuplicateAddress)
		}
		if !lacksLength(p) {
			continue
		}
		at := slices.IndexFunc(l.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
		if at < 0 {
			return nil, fmt.Errorf("%w: %s has no address in its network: %v",
				withoutLength(a), l.Netdev, l.Subnets)
		}
		all[i] = netip.PrefixFrom(a, l.Subnets[at].Bits())
	}
	return all, nil
}

// routes are the default routes over a router that one of our addresses can reach.
func (l *netdevConfig) routes(ours []netip.Prefix) (routes []Route) {
	for _, g := range l.Gateways {
		if slices.ContainsFunc(ours, func(p netip.Prefix) bool { return reaches(p, g) }) {
			routes = append(routes, Route{Destination: netip.PrefixFrom(g, 0).Masked(), Gateway: g})
		}
	}
	return routes
}

// reaches says whether an address of ours makes a router useful: one in its subnet or, where the
// router's is link-local, any that is not.
func reaches(own netip.Prefix, router netip.Addr) bool {
	if router.Is6() && router.IsLinkLocalUnicast() {
		return own.Addr().Is6() && !own.Addr().IsLinkLocalUnicast()
	}
	return own.Contains(router) && own.Addr() != router
}
