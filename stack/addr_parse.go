package stack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// ParseAddress reads one address of ours as a user writes it, address and prefix length:
// "192.0.2.10/24" or "2001:db8::10/64". Without a length it is for [Open] to find, see
// [Config.Addresses]. The error is one sentence that says how to write it.
func ParseAddress(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, bare := netip.ParseAddr(s); bare == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, -1), nil
	}
	if err != nil {
		return netip.Prefix{},
			fmt.Errorf("address %q is not of the form 192.0.2.10/24 or 2001:db8::10/64", s)
	}
	return p, checkAddress(p)
}

// withoutLength says what is missing from an address.
func withoutLength(a netip.Addr) error {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return fmt.Errorf("address %s has no prefix length; write the subnet's, for example %s/%d", a,
		a, bits)
}

// lacksLength says whether p is an address without its prefix length.
func lacksLength(p netip.Prefix) bool { return p.Addr().IsValid() && p.Bits() < 0 }

// checkAddress refuses what cannot be the address of a host on an Ethernet.
func checkAddress(p netip.Prefix) error {
	a := p.Addr()
	switch {
	case !a.IsValid():
		return errors.New("an address is empty; give one such as 192.0.2.10/24 or 2001:db8::10/64")
	case a.Is4In6():
		return fmt.Errorf("address %s is an IPv4 address in IPv6 form; write it as %s", a,
			a.Unmap())
	case a.IsUnspecified(), a.IsMulticast():
		return fmt.Errorf("address %s cannot belong to one host; "+
			"give this host's own unicast address", a)
	case a.IsLoopback():
		return fmt.Errorf("address %s is loopback, which every stack has already; "+
			"give an address of the link's subnet", a)
	case hasEnds(p) && a == p.Masked().Addr():
		return fmt.Errorf("address %s is the subnet itself; "+
			"give a host address inside it, for example %s/%d", p, a.Next(), p.Bits())
	case hasEnds(p) && a == lastAddr(p):
		return fmt.Errorf("address %s is the subnet's broadcast address; "+
			"give a host address inside the subnet", p)
	}
	return nil
}

// hasEnds says whether the first and last address of p's subnet are not hosts.
func hasEnds(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() >= 0 && p.Bits() < 31 }

// lastAddr is the highest address of an IPv4 subnet.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// toAddress converts to netstack's form; the zero netip.Addr becomes netstack's "any".
func toAddress(a netip.Addr) tcpip.Address {
	switch {
	case a.Is4():
		return tcpip.AddrFrom4(a.As4())
	case a.Is6():
		return tcpip.AddrFrom16(a.As16())
	}
	return tcpip.Address{}
}

// fromAddress converts from netstack's form; "any" becomes the zero netip.Addr.
func fromAddress(a tcpip.Address) netip.Addr {
	switch a.Len() {
	case header.IPv4AddressSize:
		return netip.AddrFrom4(a.As4())
	case header.IPv6AddressSize:
		return netip.AddrFrom16(a.As16())
	}
	return netip.Addr{}
}

func toSubnet(p netip.Prefix) (tcpip.Subnet, error) {
	p = p.Masked()
	a := toAddress(p.Addr())
	mask := net.CIDRMask(p.Bits(), a.BitLen())
	return tcpip.NewSubnet(a, tcpip.MaskFromBytes(mask))
}

// protocolOf is the network protocol that carries a.
func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}
