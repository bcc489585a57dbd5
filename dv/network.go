package dv

import (
	"fmt"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/netdev"
)

// Network is how Linux uses the netdev of a port: what a second host on the same
// link needs to know besides its own address.
type Network struct {
	// Netdev is the name of the port's interface.
	Netdev string
	// Addresses are Linux's own there.
	Addresses []netip.Addr
	// Subnets are the prefixes on the link, without the link-local ones, longest first.
	Subnets []netip.Prefix
	// Gateways are the default routers, at most one per IP version.
	Gateways []netip.Addr
}

// NetworkOf asks the kernel, by netlink, about the netdev of the port that cfg
// names, in the network namespace of the calling thread: about the VLAN
// interface on top of it if cfg says VLAN. Nothing is opened. A port without
// that interface there gives an error that is ErrNotFound.
func NetworkOf(cfg Config) (Network, error) {
	t, err := locate(&cfg)
	if err != nil {
		return Network{}, err
	}
	name := t.facts.Netdev
	if name == "" {
		return Network{}, refuse(ErrNotFound, "%s has no netdev in this network namespace", t.facts.Name)
	}
	if _, err := netdev.ByName(name); err != nil {
		return Network{}, as(ErrNotFound, fmt.Errorf("netdev %s of %s: %w", name, t.facts.Name, err))
	}
	if cfg.VLAN != 0 {
		if name, err = netdev.VLANOn(name, int(cfg.VLAN)); err != nil {
			return Network{}, as(ErrNotFound, err)
		}
	}
	n, err := netdev.NetworkOf(name)
	if err != nil {
		return Network{}, fmt.Errorf("read addresses and routes of %s: %w", name, err)
	}
	return Network(n), nil
}
