package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/subnet"
)

// choosesSubnet reports whether the program chooses the slice's addresses.
func (f *serveFlags) choosesSubnet() bool {
	return f.device == simDevice && len(f.addresses) == 0 && f.sources == (addressSources{})
}

// openSim makes the software NIC after it has settled its addresses. Meanwhile no other server of
// this network namespace does the same, so that two that start at once do not choose the same
// subnet.
func (s *slice) openSim(f *serveFlags, log *slog.Logger) (err error) {
	unlock, err := subnet.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := f.settle(); err != nil {
		return err
	}
	host := hostSide(f.addresses, f.gateways)
	if s.sim, err = openSim(f.sim, f.mtu, host, log, &s.cleanup); err != nil {
		return err
	}
	s.about = "the software NIC on " + f.sim.wire
	if strings.HasPrefix(f.sim.wire, "tap:") && len(host) > 0 {
		s.about += ", where this machine is " + listed(host)
	}
	return nil
}

// settle chooses addresses in subnets that nothing on this machine uses, or refuses given addresses
// that are in use.
func (f *serveFlags) settle() error {
	wire, err := parseWireSpec(f.sim.wireFlag, f.sim.wire)
	if err != nil {
		return err
	}
	ours := ""
	if wire.kind == "tap" { // addresses of a persistent TAP interface are meant for us
		ours = wire.name
	}
	uses, err := subnet.InUse(ours)
	if err != nil {
		return err
	}
	if f.choosesSubnet() {
		return f.pick(uses, wire)
	}
	for _, p := range f.addresses {
		if err := conflictError(p, wire, uses); err != nil {
			return err
		}
	}
	return nil
}

func listed(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " and ")
}

// The last byte of the slice's address in a chosen subnet; both print as "10".
const (
	slicePart4 = 10
	slicePart6 = 0x10
)

// pick chooses an address of each IP version. A TAP interface gets none of IPv6 where the kernel
// has IPv6 off.
func (f *serveFlags) pick(uses []subnet.Use, wire wireSpec) error {
	v4, err := subnet.Free4(uses)
	if err != nil {
		return fmt.Errorf("%w; choose an --address", err)
	}
	f.addresses = []netip.Prefix{within(v4, slicePart4)}
	if wire.kind == "tap" && !hasIPv6() {
		return nil
	}
	v6, err := subnet.Free6(uses)
	if err != nil {
		return fmt.Errorf("%w; choose an --address", err)
	}
	f.addresses = append(f.addresses, within(v6, slicePart6))
	return nil
}

// within returns the address of a subnet that ends in last.
func within(p netip.Prefix, last byte) netip.Prefix {
	b := p.Addr().AsSlice()
	b[len(b)-1] = last
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// conflictError says what uses an address that would be taken from the machine: any address of its
// subnet if an interface is made for it, only the address itself on an existing network.
func conflictError(p netip.Prefix, wire wireSpec, uses []subnet.Use) error {
	for _, u := range uses {
		switch {
		case wire.kind == "tap" && p.Bits() >= 0 && u.Prefix.Overlaps(p):
			return fmt.Errorf(
				"--address %s: %s, and interface %s would take that away; give another subnet, "+
					"or none: then a free one is chosen",
				p,
				u.By,
				wire.name,
			)
		case wire.kind == "packet" && u.Prefix.Addr() == p.Addr():
			return fmt.Errorf("--address %s: %s; give the slice an address of its own", p, u.By)
		}
	}
	return nil
}

// hasIPv6 reports whether a new interface of this namespace may have IPv6 addresses.
func hasIPv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// hostSide returns the address that the machine itself gets on the wire's interface for each
// address of the slice: the gateway if one is in the subnet, else the subnet's first free address.
func hostSide(ours []netip.Prefix, gateways []netip.Addr) []netip.Prefix {
	var host []netip.Prefix
	for _, p := range ours {
		if p.Bits() < 0 { // the subnet exists already
			continue
		}
		host = append(host, netip.PrefixFrom(neighbour(p, ours, gateways), p.Bits()))
	}
	return host
}

func neighbour(p netip.Prefix, ours []netip.Prefix, gateways []netip.Addr) netip.Addr {
	for _, g := range gateways {
		if p.Contains(g) {
			return g
		}
	}
	a := p.Masked().Addr().Next()
	for isOurs(a, ours) {
		a = a.Next()
	}
	return a
}

func isOurs(a netip.Addr, ours []netip.Prefix) bool {
	for _, p := range ours {
		if p.Addr() == a {
			return true
		}
	}
	return false
}
