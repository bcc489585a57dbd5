package stack

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// ParseAddress reads one address of ours as a user writes it, address and prefix length:
// "192.0.2.10/24" or "2001:db8::10/64". The error is one sentence that says how to write it.
func ParseAddress(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		return parseBare(s)
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("address %q is not of the form 192.0.2.10/24 or 2001:db8::10/64", s)
	}
	return p, checkAddress(p)
}

// parseBare explains what is missing from s, which has no slash.
func parseBare(s string) (netip.Prefix, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("address %q is not of the form 192.0.2.10/24 or 2001:db8::10/64", s)
	}
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.Prefix{}, fmt.Errorf("address %s has no prefix length; write the subnet's, for example %s/%d", a, a, bits)
}

// checkAddress refuses what cannot be the address of a host on an Ethernet.
func checkAddress(p netip.Prefix) error {
	a := p.Addr()
	switch {
	case !p.IsValid():
		return fmt.Errorf("address %s is not valid; write it as 192.0.2.10/24 or 2001:db8::10/64", p)
	case a.Is4In6():
		return fmt.Errorf("address %s is an IPv4 address in IPv6 form; write it as %s", p, a.Unmap())
	case a.IsUnspecified(), a.IsMulticast():
		return fmt.Errorf("address %s cannot belong to one host; give this host's own unicast address", p)
	case a.IsLoopback():
		return fmt.Errorf("address %s is loopback, which every stack has already; give an address of the link's subnet", p)
	case a.Is4() && p.Bits() < 31 && a == p.Masked().Addr():
		return fmt.Errorf("address %s is the subnet itself; give a host address inside it, for example %s/%d", p, a.Next(), p.Bits())
	case a.Is4() && p.Bits() < 31 && a == lastAddr(p):
		return fmt.Errorf("address %s is the subnet's broadcast address; give a host address inside the subnet", p)
	}
	return nil
}

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
