package stack

import (
	"context"
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

const (
	ipv4Protocol = header.IPv4ProtocolNumber
	ipv6Protocol = header.IPv6ProtocolNumber
)

// attach gives the stack its interfaces, addresses and routes. ctx bounds how long that waits.
func (s *Stack) attach(ctx context.Context, link gstack.LinkEndpoint) error {
	if err := s.addLoopback(); err != nil {
		link.Close()
		return err
	}
	mac := link.LinkAddress()
	if err := s.addLink(link); err != nil {
		return err
	}
	routes, err := s.routeTable()
	if err != nil {
		return err
	}
	s.net.SetRouteTable(routes)
	s.tellGroups()
	s.background.Go(s.guard)
	if err := s.addAddresses(ctx, mac); err != nil {
		return err
	}
	s.addressesChanged()
	if !s.cfg.NoAnnounce {
		s.announceTwice()
	}
	return s.configure(ctx)
}

// static says whether p is one of cfg's addresses.
func (s *Stack) static(p netip.Prefix) bool {
	for _, c := range s.cfg.Addresses {
		if c.Addr() == p.Addr() {
			return true
		}
	}
	return false
}

// fastLink is a link with a fast path, which [rdma.Endpoint] is.
type fastLink interface {
	BindStack(*gstack.Stack, tcpip.NICID) error
	SetLocalAddresses([]netip.Prefix)
	SetDatagramSinks(func(v6 bool, port uint16) rdma.DatagramSink)
	datagramLink
}

var _ fastLink = (*rdma.Endpoint)(nil)

// addLink makes link the stack's interface; pure ACKs pass through a queueing discipline that lets
// most of them ride on data.
func (s *Stack) addLink(link gstack.LinkEndpoint) error {
	s.claims.own = link.LinkAddress()
	b, ours := link.(fastLink)
	if !ours {
		s.foreign = newDetachable(link, s.log, s.clock)
		link = s.foreign.endpoint()
	}
	opts := gstack.NICOptions{Name: s.name}
	if d := s.cfg.TCP.ACKDelay; d >= 0 {
		s.acks = rdma.NewACKCoalescer(link, rdma.ACKOptions{Delay: d, Clock: s.clock,
			Random: s.cfg.Random})
		opts.QDisc = s.acks
	}
	s.link, _ = link.(*rdma.Endpoint)
	if err := s.net.CreateNICWithOptions(nicID, link, opts); err != nil {
		return asError("create interface "+s.name, err)
	}
	if s.resolves = link.Capabilities()&gstack.CapabilityResolutionRequired != 0; !s.resolves {
		s.disableDetection(nicID)
	}
	if !ours {
		return nil
	}
	if !s.cfg.NoFastPath {
		s.setLocalAddresses, s.datagrams = b.SetLocalAddresses, b
		b.SetDatagramSinks(s.udpPorts.find)
	}
	return b.BindStack(s.net, nicID)
}

func (s *Stack) addLoopback() error {
	if err := s.net.CreateNICWithOptions(loopbackID, loopback.New(),
		gstack.NICOptions{Name: "lo"}); err != nil {
		return asError("create interface lo", err)
	}
	s.disableDetection(loopbackID)
	for _, p := range []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"),
		netip.MustParsePrefix("::1/128")} {
		if err := s.net.AddProtocolAddress(loopbackID, protocolAddress(p),
			gstack.AddressProperties{}); err != nil {
			return asError("add address "+p.String(), err)
		}
	}
	// As on Linux, all that is sent to an address of ours passes lo, whatever its source; lo itself
	// has only its own.
	return asError("make lo take packets for all our addresses",
		s.net.SetPromiscuousMode(loopbackID, true))
}

func protocolAddress(p netip.Prefix) tcpip.ProtocolAddress {
	return tcpip.ProtocolAddress{
		Protocol: protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   toAddress(p.Addr()),
			PrefixLen: p.Bits(),
		},
	}
}

// onLinkAlways are destinations that never need a gateway: groups, broadcast and link-local hosts.
var onLinkAlways = []string{"224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"}

// routeTable lists loopback, what is on the link, cfg's routes and the gateways. Netstack orders
// it.
func (s *Stack) routeTable() ([]tcpip.Route, error) {
	all := []Route{}
	for _, p := range onLinkAlways {
		all = append(all, Route{Destination: netip.MustParsePrefix(p)})
	}
	if s.host == nil { // whose own routes are all
		for _, p := range s.cfg.Addresses {
			all = append(all, Route{Destination: p.Masked()})
		}
	}
	all = append(all, s.cfg.Routes...)
	for _, g := range s.cfg.Gateways {
		all = append(all, Route{Destination: netip.PrefixFrom(g, 0).Masked(), Gateway: g})
	}
	all = append(all, s.autoconf.allRoutes()...)
	table := make([]tcpip.Route, 0, len(all)+2)
	for _, p := range []string{"127.0.0.0/8", "::1/128"} {
		subnet, err := toSubnet(netip.MustParsePrefix(p))
		if err != nil {
			return nil, err
		}
		table = append(table, tcpip.Route{Destination: subnet, NIC: loopbackID})
	}
	for _, r := range all {
		subnet, err := toSubnet(r.Destination)
		if err != nil {
			return nil, fmt.Errorf("route to %s: %w", r.Destination, err)
		}
		table = append(table, tcpip.Route{Destination: subnet, Gateway: toAddress(r.Gateway),
			NIC: nicID, MTU: uint32(r.MTU)})
	}
	return table, nil
}
