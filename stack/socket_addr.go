package stack

import (
	"net"
	"net/netip"
	"strconv"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// family is the kind of socket the host stack would have made; it decides how addresses print.
type family uint8

const (
	inet4 family = iota // AF_INET
	inet6               // AF_INET6 with IPV6_V6ONLY
	inet                // AF_INET6, dual stack: IPv4 peers appear as ::ffff:a.b.c.d
)

// listenFamily chooses as net.Listen does: a wildcard without a 4 or 6 in the network is
// dual-stack.
func listenFamily(network string, ip net.IP) family {
	switch {
	case network[len(network)-1] == '4':
		return inet4
	case network[len(network)-1] == '6':
		return inet6
	case len(ip) == 0 || ip.IsUnspecified():
		return inet
	case ip.To4() != nil:
		return inet4
	}
	return inet
}

// dialFamily chooses as net.Dial does: AF_INET if neither end is an IPv6 address.
func dialFamily(network string, local, remote net.IP) family {
	switch {
	case network[len(network)-1] == '4':
		return inet4
	case network[len(network)-1] == '6':
		return inet6
	case is4(local) && is4(remote):
		return inet4
	}
	return inet
}

// is4 counts "no address" as IPv4, as package net does.
func is4(ip net.IP) bool { return len(ip) <= net.IPv4len || ip.To4() != nil }

func (f family) protocol() tcpip.NetworkProtocolNumber {
	if f == inet4 {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// ip converts a netstack address to the bytes the host stack would report for this kind of socket:
// 4 of them for AF_INET, 16 else. "Any" becomes 0.0.0.0 or ::. buf backs the result.
func (f family) ip(a tcpip.Address, buf *[16]byte) net.IP {
	if f == inet4 {
		*buf = [16]byte{}
		copy(buf[:4], a.AsSlice())
		return buf[:4:4]
	}
	switch a.Len() {
	case header.IPv4AddressSize:
		*buf = [16]byte{10: 0xff, 11: 0xff}
		copy(buf[12:], a.AsSlice())
	case header.IPv6AddressSize:
		*buf = a.As16()
	default:
		*buf = [16]byte{}
	}
	return buf[:]
}

// addrPort is ip for netip.
func (f family) addrPort(a tcpip.FullAddress, zone string) netip.AddrPort {
	var buf [16]byte
	ip, _ := netip.AddrFromSlice(f.ip(a.Addr, &buf))
	return netip.AddrPortFrom(ip.WithZone(zone), a.Port)
}

// address is the other way: an address a caller gave, for use with this kind of socket.
func (f family) address(ip net.IP) (tcpip.Address, error) {
	if len(ip) == 0 || ip.Equal(net.IPv4zero) || ip.Equal(net.IPv6zero) {
		if f == inet4 && len(ip) != 0 && ip.To4() == nil {
			return tcpip.Address{}, &net.AddrError{Err: "non-IPv4 address", Addr: ip.String()}
		}
		return tcpip.Address{}, nil
	}
	if v4 := ip.To4(); v4 != nil {
		return tcpip.AddrFrom4Slice(v4), nil
	}
	if f == inet4 {
		return tcpip.Address{}, &net.AddrError{Err: "non-IPv4 address", Addr: ip.String()}
	}
	if len(ip) != net.IPv6len {
		return tcpip.Address{}, &net.AddrError{Err: "non-IPv6 address", Addr: ip.String()}
	}
	return tcpip.AddrFrom16Slice(ip), nil
}

// fromNetip is address for netip.
func (f family) fromNetip(a netip.Addr) (tcpip.Address, error) {
	a = a.Unmap()
	if f == inet4 && !a.Is4() {
		return tcpip.Address{}, &net.AddrError{Err: "non-IPv4 address", Addr: a.String()}
	}
	if a.IsUnspecified() {
		return tcpip.Address{}, nil
	}
	return toAddress(a), nil
}

// full completes an address with what netstack needs to know of the link: link-local addresses
// are on our NIC.
func (s *Stack) full(a tcpip.Address, port int, zone string) (tcpip.FullAddress, error) {
	full := tcpip.FullAddress{Addr: a, Port: uint16(port)}
	if port < 0 || port > 0xffff {
		return full, &net.AddrError{Err: "invalid port", Addr: strconv.Itoa(port)}
	}
	if zone != "" && zone != s.name && zone != strconv.Itoa(nicID) {
		return full, &net.AddrError{Err: "no such zone", Addr: zone}
	}
	if onLink(a) {
		full.NIC = nicID
	}
	return full, nil
}

// onLink says whether a means something only together with a link.
func onLink(a tcpip.Address) bool {
	return header.IsV6LinkLocalUnicastAddress(a) || header.IsV6LinkLocalMulticastAddress(a)
}

// zone is what is printed after the % of a.
func (s *Stack) zone(a tcpip.Address) string {
	if onLink(a) {
		return s.name
	}
	return ""
}

func (s *Stack) tcpAddr(f family, a tcpip.FullAddress) *net.TCPAddr {
	both := new(struct {
		addr net.TCPAddr
		ip   [16]byte
	}) // one allocation
	both.addr = net.TCPAddr{IP: f.ip(a.Addr, &both.ip), Port: int(a.Port), Zone: s.zone(a.Addr)}
	return &both.addr
}

func (s *Stack) udpAddr(f family, a tcpip.FullAddress) *net.UDPAddr {
	both := new(struct {
		addr net.UDPAddr
		ip   [16]byte
	})
	both.addr = net.UDPAddr{IP: f.ip(a.Addr, &both.ip), Port: int(a.Port), Zone: s.zone(a.Addr)}
	return &both.addr
}
