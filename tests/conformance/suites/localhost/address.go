package localhost

import (
	"net"
	"net/netip"
)

// The subnets of slices, from the prefixes that RFC 5737 and RFC 3849 reserve for documentation.
var (
	subnet4 = netip.MustParsePrefix("192.0.2.0/24")
	subnet6 = netip.MustParsePrefix("2001:db8::/64")
)

// loopback returns the loopback address of one version of IP.
func loopback(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// replaceIP returns an address in the place of another, in as many bytes as that has.
func replaceIP(old net.IP, by netip.Addr) net.IP {
	if len(old) == net.IPv4len || by.Is6() {
		return by.AsSlice()
	}
	b := by.As16()
	return b[:]
}

// replaceAddr returns an address in the place of another: mapped to IPv6 where that is.
func replaceAddr(old, by netip.Addr) netip.Addr {
	if old.Is4In6() && by.Is4() {
		return netip.AddrFrom16(by.As16())
	}
	return by
}

// withIP returns a copy of a socket's address with another IP address.
func withIP(a net.Addr, ip net.IP) net.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		return &net.TCPAddr{IP: ip, Port: a.Port}
	case *net.UDPAddr:
		return &net.UDPAddr{IP: ip, Port: a.Port}
	}
	return a
}

// addressOf returns that of a *net.TCPAddr or *net.UDPAddr, of IPv4 as such; the zero value of
// none.
func addressOf(a net.Addr) netip.AddrPort {
	var ip net.IP
	var port int
	switch a := a.(type) {
	case *net.TCPAddr:
		ip, port = a.IP, a.Port
	case *net.UDPAddr:
		ip, port = a.IP, a.Port
	}
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port))
}

// isHere reports whether an address means this host: that of loopback, or none.
func isHere(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() || a.IsLoopback() }

// shown returns the address that a program is told: of loopback for that of a slice.
func shown(a netip.Addr) netip.Addr {
	switch is := a.Unmap(); {
	case subnet4.Contains(is):
		return replaceAddr(a, loopback(false))
	case subnet6.Contains(is):
		return loopback(true)
	}
	return a
}

func shownPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(shown(a.Addr()), a.Port())
}

// shownSocket returns the address that a program is told of a socket.
func shownSocket(a net.Addr) net.Addr {
	is := addressOf(a).Addr()
	if by := shown(is); by != is {
		switch a := a.(type) {
		case *net.TCPAddr:
			return withIP(a, replaceIP(a.IP, by))
		case *net.UDPAddr:
			return withIP(a, replaceIP(a.IP, by))
		}
	}
	return a
}
