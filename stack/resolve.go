package stack

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/resolver"
)

// resolvedAddr holds one address a name or literal stands for; ip is the zero Addr for "" (the
// wildcard).
type resolvedAddr struct {
	ip   netip.Addr
	port int
}

type resolvedAddrs []resolvedAddr

// first returns what one listens on: an IPv4 address if there is one, as net.ResolveTCPAddr
// chooses, unless an IPv6 literal was given.
func (t resolvedAddrs) first() resolvedAddr {
	for _, a := range t {
		if a.ip.Is4() {
			return a
		}
	}
	return t[0]
}

// slice returns nil for the wildcard without a family.
func (t resolvedAddr) slice() net.IP { return t.ip.AsSlice() }

func (t resolvedAddr) tcp() *net.TCPAddr {
	return &net.TCPAddr{IP: t.slice(), Port: t.port, Zone: t.ip.Zone()}
}

func (t resolvedAddr) udp() *net.UDPAddr {
	return &net.UDPAddr{IP: t.slice(), Port: t.port, Zone: t.ip.Zone()}
}

func (t resolvedAddr) addr(network string) net.Addr {
	if network[0] == 'u' {
		return t.udp()
	}
	return t.tcp()
}

// nameLookup turns names into addresses.
type nameLookup struct {
	dns  *resolver.Resolver
	rank func(netip.Addr) int // of destinations: the lowest are tried first
}

// checkNetwork refuses a network that is not protocol ("tcp" or "udp") with an optional 4 or 6.
func checkNetwork(protocol, network string) error {
	switch network {
	case protocol, protocol + "4", protocol + "6":
		return nil
	}
	return net.UnknownNetworkError(network)
}

// resolveListen is resolveList for a listener of protocol; the error is complete.
func (n *nameLookup) resolveListen(ctx context.Context,
	protocol, network, address string) (resolvedAddrs, error) {
	unknown := checkNetwork(protocol, network)
	if unknown != nil && checkNetwork("tcp", network) != nil &&
		checkNetwork("udp", network) != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: unknown}
	}
	list, err := n.resolveList(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	if unknown != nil { // a network, but not one for this kind of listener
		err := &net.AddrError{Err: "unexpected address type", Addr: address}
		return nil, &net.OpError{Op: "listen", Net: network,
			Addr: list.first().addr(network), Err: err}
	}
	return list, nil
}

// resolveList turns "host:port" into addresses of the network's family, most promising first.
// The list is not empty when err is nil.
func (n *nameLookup) resolveList(ctx context.Context, network,
	address string) (resolvedAddrs, error) {
	host, service, err := net.SplitHostPort(address)
	if address == "" {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	port := 0
	if service != "" {
		// Service names come from /etc/services and a table in package net; no packet is sent.
		if port, err = net.DefaultResolver.LookupPort(ctx, network, service); err != nil {
			return nil, err
		}
	}
	if host == "" {
		return resolvedAddrs{{port: port}}, nil
	}
	ips, err := n.lookup(ctx, network, host)
	if err != nil {
		return nil, err
	}
	var list resolvedAddrs
	for _, ip := range ips {
		if inFamily(network, ip) {
			list = append(list, resolvedAddr{ip, port})
		}
	}
	if len(list) == 0 {
		return nil, &net.AddrError{Err: errNoSuitable.Error(), Addr: host}
	}
	return list, nil
}

// inFamily says whether an address is of the family that network asks for.
func inFamily(network string, ip netip.Addr) bool {
	switch network[len(network)-1] {
	case '4':
		return ip.Is4()
	case '6':
		return ip.Is6()
	}
	return true
}

// lookup resolves a literal or a name. It asks for addresses of the network's families only.
func (n *nameLookup) lookup(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		// a dual-stack listener prints so: it has the other family's wildcard, too
		if ip == netip.IPv6Unspecified() {
			return []netip.Addr{ip, netip.IPv4Unspecified()}, nil
		}
		return []netip.Addr{ip.Unmap()}, nil
	}
	ips, err := n.dns.LookupNetIP(ctx, "ip"+network[3:], host)
	if err != nil {
		return nil, err
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return n.rank(a) - n.rank(b) })
	return ips, nil
}

// hostResolvConf are the machine's files. The second is written by systemd-resolved if the first
// names its own server, on a loopback which is not ours.
var hostResolvConf = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}
