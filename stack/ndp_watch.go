package stack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// ndpWatch wraps netstack's IPv6 to inspect messages of neighbour discovery: which other hosts use
// our addresses, and which router advertises which resolvers. Netstack reports neither.
type ndpWatch struct {
	claims      *claims
	memberships *memberships
	events      *raEvents // nil: router advertisements are ignored
	clock       clock.Clock
}

func (w ndpWatch) wrap(factory gstack.NetworkProtocolFactory) gstack.NetworkProtocolFactory {
	return wrapProtocol(factory, func(p ipv6Whole) gstack.NetworkProtocol {
		return ipv6Watched{p, w}
	})
}

// ipv6Whole is what netstack wants of the IPv6 protocol.
type ipv6Whole interface {
	gstack.NetworkProtocol
	gstack.MulticastForwardingNetworkProtocol
	gstack.RejectIPv6WithHandler
}

// ipv6Watched is netstack's IPv6, with neighbour discovery inspected.
type ipv6Watched struct {
	ipv6Whole
	watch ndpWatch
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p ipv6Watched) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	ep := p.ipv6Whole.NewEndpoint(nic, d)
	if full, ok := ep.(ipv6Host); ok && nic.ID() == nicID {
		return &ipv6Endpoint{full, nic, p.watch}
	}
	return ep
}

// ipv6Host is what netstack wants of an IPv6 endpoint.
type ipv6Host interface {
	gstack.NetworkEndpoint
	gstack.AddressableEndpoint
	gstack.GroupAddressableEndpoint
	gstack.DuplicateAddressDetector
	gstack.LinkAddressResolver
	gstack.LinkResolvableNetworkEndpoint
	gstack.ForwardingNetworkEndpoint
	gstack.MulticastForwardingNetworkEndpoint
	gstack.NDPEndpoint
	ipv6.NDPEndpoint
	ipv6.MLDEndpoint
}

// ipv6Endpoint is netstack's IPv6 on one interface, with neighbour discovery inspected.
type ipv6Endpoint struct {
	ipv6Host
	nic   gstack.NetworkInterface
	watch ndpWatch
}

// HandlePacket implements gstack.NetworkEndpoint.
func (e *ipv6Endpoint) HandlePacket(pkt *gstack.PacketBuffer) {
	if h, ok := pkt.Data().PullUp(header.IPv6MinimumSize); ok {
		ip := header.IPv6(h)
		if tcpip.TransportProtocolNumber(ip.NextHeader()) == header.ICMPv6ProtocolNumber &&
			ip.HopLimit() == header.NDPHopLimit {
			e.inspect(pkt)
		}
	}
	e.ipv6Host.HandlePacket(pkt)
}

// inspect parses a message of neighbour discovery, if pkt is one. It is never fragmented (RFC
// 6980).
func (e *ipv6Endpoint) inspect(pkt *gstack.PacketBuffer) {
	h, ok := pkt.Data().PullUp(header.IPv6MinimumSize + header.ICMPv6MinimumSize)
	if !ok || !isNDP(header.ICMPv6(h[header.IPv6MinimumSize:])) {
		return
	}
	ip := header.IPv6(pkt.Data().AsRange().ToSlice())
	end := header.IPv6MinimumSize + int(ip.PayloadLength())
	if end > len(ip) {
		return
	}
	m, ok := parseNDP(ip.SourceAddress(), ip.DestinationAddress(),
		header.ICMPv6(ip[header.IPv6MinimumSize:end]))
	if !ok {
		return
	}
	if link := pkt.LinkHeader().Slice(); len(m.mac) == 0 &&
		len(link) >= header.EthernetMinimumSize {
		m.mac = header.Ethernet(link).SourceAddress()
	}
	e.checkSender(m)
	if e.watch.events != nil && len(m.servers) > 0 {
		e.watch.events.advertised(m, e.watch.clock.Now())
	}
}

// isNDP says whether it is a message that parseNDP knows.
func isNDP(m header.ICMPv6) bool {
	switch m.Type() {
	case header.ICMPv6RouterAdvert, header.ICMPv6NeighborSolicit, header.ICMPv6NeighborAdvert:
		return true
	}
	return false
}

// checkSender compares the sender with our addresses.
func (e *ipv6Endpoint) checkSender(m ndpMessage) {
	c := e.watch.claims
	switch {
	case len(c.own) == 0 || len(m.mac) == 0:
	case m.mac == c.own:
		c.twin()
	case m.holds != tcpip.Address{} && e.nic.CheckLocalAddress(ipv6Protocol, m.holds):
		c.conflict(m.holds, m.mac)
	}
}

// ndpMessage is what matters of a message of neighbour discovery.
type ndpMessage struct {
	mac     tcpip.LinkAddress // the sender's, as its option says; empty: it has none
	holds   tcpip.Address     // what the sender says is its address; the zero value: nothing
	router  netip.Addr        // who advertises servers
	servers []advertisedServers
}

// advertisedServers is one option for resolvers of a router's advertisement (RFC 8106 section 5.1).
type advertisedServers struct {
	servers []netip.Addr
	lasts   time.Duration // from when it comes; header.NDPInfiniteLifetime: for ever
}

// parseNDP parses a message that came with a hop limit of 255. What RFC 4861 sections 6.1.2, 7.1.1
// and 7.1.2 call invalid is not ok, nor are messages of other types.
func parseNDP(from, to tcpip.Address, icmp header.ICMPv6) (m ndpMessage, ok bool) {
	if len(icmp) < header.ICMPv6HeaderSize || icmp.Code() != 0 ||
		icmp.Checksum() != header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp,
			Src: from, Dst: to}) {
		return m, false
	}
	body := icmp.MessageBody()
	switch icmp.Type() {
	case header.ICMPv6NeighborAdvert:
		if len(body) >= header.NDPNAMinimumSize {
			na := header.NDPNeighborAdvert(body)
			m.holds = na.TargetAddress()
			return m, m.options(na.Options())
		}
	case header.ICMPv6NeighborSolicit:
		if len(body) >= header.NDPNSMinimumSize {
			if from != header.IPv6Any {
				m.holds = from
			}
			return m, m.options(header.NDPNeighborSolicit(body).Options())
		}
	case header.ICMPv6RouterAdvert:
		if len(body) >= header.NDPRAMinimumSize && header.IsV6LinkLocalUnicastAddress(from) {
			m.holds, m.router = from, fromAddress(from)
			return m, m.options(header.NDPRouterAdvert(body).Options())
		}
	}
	return m, false
}

// options reads the options of a message, and reports whether they are well-formed.
func (m *ndpMessage) options(o header.NDPOptions) bool {
	it, err := o.Iter(true)
	if err != nil {
		return false
	}
	for {
		opt, done, err := it.Next()
		switch {
		case err != nil:
			return false
		case done:
			return true
		}
		switch opt := opt.(type) {
		case header.NDPSourceLinkLayerAddressOption:
			m.mac = opt.EthernetAddress()
		case header.NDPTargetLinkLayerAddressOption:
			m.mac = opt.EthernetAddress()
		case header.NDPRecursiveDNSServer:
			m.resolvers(opt)
		}
	}
}

func (m *ndpMessage) resolvers(opt header.NDPRecursiveDNSServer) {
	given, err := opt.Addresses()
	if err != nil {
		return
	}
	told := advertisedServers{lasts: opt.Lifetime()}
	for _, a := range given {
		told.servers = append(told.servers, fromAddress(a))
	}
	m.servers = append(m.servers, told)
}
