package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/neighbours"
)

// hostDispatcher is between netstack's network layer and its sockets. It keeps the host from
// answering what was sent to several hosts, reads ICMP errors (icmp.go), and keeps those away from
// netstack's sockets, which would take them for something else.
//
// What is sent to several hosts: by the IP address, or in a frame to a group or to all. Linux takes
// datagrams of either for a socket, and answers neither with ICMP (RFC 1122 sections 3.2.2 and
// 3.3.6, RFC 4443 section 2.4 e); TCP takes nothing of it (net/ipv4/tcp_ipv4.c tcp_v4_rcv), and
// echo requests to an IPv4 address of several hosts are dropped (icmp_echo_ignore_broadcasts).
type hostDispatcher struct {
	transportDispatcher
	v6      bool
	errors  *icmpErrors
	dropped *tcpip.StatCounter
}

// transportDispatcher is what netstack's network layer wants of the layer above.
type transportDispatcher = gstack.TransportDispatcherWithDefaultHandlerResult

// dispatch returns what an endpoint of the network layer on nic delivers to, in the place of d.
func (e *icmpErrors) dispatch(v6 bool, d gstack.TransportDispatcher) gstack.TransportDispatcher {
	if full, ok := d.(transportDispatcher); ok {
		return &hostDispatcher{full, v6, e, e.dropped}
	}
	return d
}

// DeliverRawPacket implements gstack.TransportDispatcher.
func (d *hostDispatcher) DeliverRawPacket(protocol tcpip.TransportProtocolNumber,
	pkt *gstack.PacketBuffer) {
	if protocol == d.icmp() {
		d.errors.received(d.v6, pkt)
	}
	d.transportDispatcher.DeliverRawPacket(protocol, pkt)
}

func (d *hostDispatcher) icmp() tcpip.TransportProtocolNumber {
	if d.v6 {
		return header.ICMPv6ProtocolNumber
	}
	return header.ICMPv4ProtocolNumber
}

// DeliverTransportPacket implements gstack.TransportDispatcher.
func (d *hostDispatcher) DeliverTransportPacket(protocol tcpip.TransportProtocolNumber,
	pkt *gstack.PacketBuffer) gstack.TransportPacketDisposition {
	if !d.isForSeveral(pkt) {
		return d.transportDispatcher.DeliverTransportPacket(protocol, pkt)
	}
	if protocol == tcp.ProtocolNumber {
		d.dropped.Increment()
	} else {
		_ = d.transportDispatcher.DeliverTransportPacket(protocol, pkt)
	}
	return gstack.TransportPacketHandled
}

// DeliverTransportPacketWithDefaultHandlerResult implements
// gstack.TransportDispatcherWithDefaultHandlerResult. It is called for echo requests, which it
// calls handled if they are not to be answered.
func (d *hostDispatcher) DeliverTransportPacketWithDefaultHandlerResult(
	protocol tcpip.TransportProtocolNumber,
	pkt *gstack.PacketBuffer) (gstack.TransportPacketDisposition, bool) {
	toSeveral := !d.v6 && d.isToSeveral(pkt)
	res, handled := d.transportDispatcher.DeliverTransportPacketWithDefaultHandlerResult(protocol,
		pkt)
	return res, handled || toSeveral
}

// DeliverTransportError implements gstack.TransportDispatcher. Errors without an ICMP header are
// netstack's own: a neighbour does not answer.
func (d *hostDispatcher) DeliverTransportError(local, remote tcpip.Address,
	network tcpip.NetworkProtocolNumber, protocol tcpip.TransportProtocolNumber,
	err gstack.TransportError, pkt *gstack.PacketBuffer) {
	known := protocol == tcp.ProtocolNumber && err.Kind() != gstack.PacketTooBigTransportError ||
		protocol == udp.ProtocolNumber
	if known && len(pkt.TransportHeader().Slice()) > 0 {
		return
	}
	d.transportDispatcher.DeliverTransportError(local, remote, network, protocol, err, pkt)
}

// isForSeveral reports whether a packet was sent to several hosts.
func (d *hostDispatcher) isForSeveral(pkt *gstack.PacketBuffer) bool {
	return inGroupFrame(pkt) || d.isToSeveral(pkt)
}

// isToSeveral reports whether the destination address is that of several hosts.
func (d *hostDispatcher) isToSeveral(pkt *gstack.PacketBuffer) bool {
	if d.v6 {
		return header.IsV6MulticastAddress(
			header.IPv6(pkt.NetworkHeader().Slice()).DestinationAddress())
	}
	return pkt.NetworkPacketInfo.LocalAddressBroadcast || header.IsV4MulticastAddress(
		header.IPv4(pkt.NetworkHeader().Slice()).DestinationAddress())
}

// inGroupFrame reports whether a packet came in a frame to a group or to all. Every link tells
// netstack, see gated.
func inGroupFrame(pkt *gstack.PacketBuffer) bool {
	return pkt.PktType == tcpip.PacketBroadcast || pkt.PktType == tcpip.PacketMulticast
}

// mustNotAnswer reports whether an IPv4 packet came in a frame to a group or to all and might be
// answered before hostDispatcher sees it: because of its options, or by a message that it is not
// complete. Such packets to one host are dropped.
func (e *ipv4Endpoint) mustNotAnswer(pkt *gstack.PacketBuffer) bool {
	if !inGroupFrame(pkt) {
		return false
	}
	b, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
	if !ok {
		return false
	}
	ip := header.IPv4(b)
	plain := ip.HeaderLength() == header.IPv4MinimumSize && !ip.More() && ip.FragmentOffset() == 0
	return !plain && e.nic.CheckLocalAddress(ipv4Protocol, ip.DestinationAddress())
}

// mustNotAnswer is the same for extension headers of IPv6, except for an option that is refused
// whoever the packet is for (RFC 4443 section 2.4 e.3).
func (e *ipv6Endpoint) mustNotAnswer(pkt *gstack.PacketBuffer) bool {
	if !inGroupFrame(pkt) {
		return false
	}
	b, ok := pkt.Data().PullUp(header.IPv6MinimumSize)
	if !ok {
		return false
	}
	ip := header.IPv6(b)
	switch header.IPv6ExtensionHeaderIdentifier(ip.NextHeader()) {
	case header.IPv6HopByHopOptionsExtHdrIdentifier, header.IPv6RoutingExtHdrIdentifier,
		header.IPv6FragmentExtHdrIdentifier, header.IPv6DestinationOptionsExtHdrIdentifier:
		return !answeredToAll(pkt.Data().AsRange().ToSlice()) &&
			e.nic.CheckLocalAddress(ipv6Protocol, ip.DestinationAddress())
	}
	return false
}

// answeredToAll reports whether netstack answers a packet with extension headers only if one has an
// option that says that all hosts shall answer.
func answeredToAll(packet []byte) bool {
	const first = header.IPv6MinimumSize
	for field, start := header.IPv6NextHeaderOffset, first; start+8 <= len(packet); {
		kind := header.IPv6ExtensionHeaderIdentifier(packet[field])
		size := (int(packet[start+1]) + 1) * 8
		switch kind {
		case header.IPv6HopByHopOptionsExtHdrIdentifier,
			header.IPv6DestinationOptionsExtHdrIdentifier:
			if kind == header.IPv6HopByHopOptionsExtHdrIdentifier && start != first {
				return false
			}
			at, refused := refusedOption(packet[start:min(start+size, len(packet))], kind)
			if refused {
				return packet[start+at]>>6 == 2
			}
		case header.IPv6RoutingExtHdrIdentifier, header.IPv6FragmentExtHdrIdentifier:
			return false
		default:
			return true // sockets are hostDispatcher's business
		}
		field, start = start, start+size
	}
	return false
}

// refusedOption returns the offset of the first option that netstack does not know and that has the
// packet discarded with a message: its two highest bits are 10 or 11 (RFC 8200 section 4.2).
func refusedOption(h []byte, kind header.IPv6ExtensionHeaderIdentifier) (at int, ok bool) {
	const pad1, padN, routerAlert = 0, 1, 5
	const firstOption = 2
	for at = firstOption; at < len(h); {
		switch t := h[at]; {
		case t == pad1:
			at++
			continue
		case t == padN || t == routerAlert && kind == header.IPv6HopByHopOptionsExtHdrIdentifier:
		case t>>6 >= 2:
			return at, true
		}
		if at+1 >= len(h) {
			break
		}
		at += 2 + int(h[at+1])
	}
	return 0, false
}

// HandlePacket implements gstack.NetworkEndpoint.
func (e *ipv4Endpoint) HandlePacket(pkt *gstack.PacketBuffer) {
	if e.mustNotAnswer(pkt) {
		e.layer.errors.dropped.Increment()
		return
	}
	if ep, ok := e.layer.acquireLocal(e.ipv4Host, header.IPv4MinimumSize, pkt); !ok {
		return
	} else if ep != nil {
		defer ep.DecRef()
	}
	e.ipv4Host.HandlePacket(pkt)
}

// acquireLocal makes the destination of a packet an address of e while it is handled, if it is one
// of a local prefix: nil if not. ok is false if the packet claims to be from one, and is dropped.
func (l ipLayer) acquireLocal(e gstack.AddressableEndpoint, size int,
	pkt *gstack.PacketBuffer) (ep gstack.AddressEndpoint, ok bool) {
	if len(l.local) == 0 {
		return nil, true
	}
	b, whole := pkt.Data().PullUp(size)
	if !whole {
		return nil, true
	}
	var from, to tcpip.Address
	if size == header.IPv4MinimumSize {
		from, to = header.IPv4(b).SourceAddress(), header.IPv4(b).DestinationAddress()
	} else {
		from, to = header.IPv6(b).SourceAddress(), header.IPv6(b).DestinationAddress()
	}
	if l.local.contains(from) {
		l.errors.dropped.Increment()
		return nil, false
	}
	if !l.local.contains(to) {
		return nil, true
	}
	return e.AcquireAssignedAddress(to, true, gstack.NeverPrimaryEndpoint, false), true
}

// AcquireAssignedAddress implements gstack.AddressableEndpoint: addresses of local prefixes are
// made when they are asked for.
func (e *ipv4Endpoint) AcquireAssignedAddress(a tcpip.Address, allowTemp bool,
	tempPEB gstack.PrimaryEndpointBehavior, readOnly bool) gstack.AddressEndpoint {
	if e.layer.local.contains(a) {
		allowTemp, tempPEB = true, gstack.NeverPrimaryEndpoint
	}
	return e.ipv4Host.AcquireAssignedAddress(a, allowTemp, tempPEB, readOnly)
}

// AcquireAssignedAddress implements gstack.AddressableEndpoint, likewise.
func (e *ipv6Endpoint) AcquireAssignedAddress(a tcpip.Address, allowTemp bool,
	tempPEB gstack.PrimaryEndpointBehavior, readOnly bool) gstack.AddressEndpoint {
	if e.layer.local.contains(a) {
		allowTemp, tempPEB = true, gstack.NeverPrimaryEndpoint
	}
	return e.ipv6Host.AcquireAssignedAddress(a, allowTemp, tempPEB, readOnly)
}

// WritePacket implements gstack.NetworkEndpoint.
func (e *ipv4Endpoint) WritePacket(r *gstack.Route, params gstack.NetworkHeaderParams,
	pkt *gstack.PacketBuffer) tcpip.Error {
	if params.Protocol == tcp.ProtocolNumber {
		e.layer.errors.sends(r, pkt)
	}
	return e.ipv4Host.WritePacket(r, params, pkt)
}

// WritePacket implements gstack.NetworkEndpoint.
func (e *ipv6Endpoint) WritePacket(r *gstack.Route, params gstack.NetworkHeaderParams,
	pkt *gstack.PacketBuffer) tcpip.Error {
	if params.Protocol == tcp.ProtocolNumber {
		e.layer.errors.sends(r, pkt)
	}
	return e.ipv6Host.WritePacket(r, params, pkt)
}

// ipLayer wraps netstack's ARP, IPv4 and IPv6: its addresses are told what is heard and which
// groups are joined, its neighbours hold packets for hosts that are not resolved yet, and sockets
// are told of ICMP errors. Netstack does none of it.
type ipLayer struct {
	addrs      *addrconf.Manager
	neighbours *neighbours.Table
	errors     *icmpErrors
	beside     bool // the kernel has the addresses, too, and answers for them (Config.Host)
	local      localPrefixes
	// the largest packet besides the link's MTU; nil: there never is one
	limit4, limit6 func() uint32
}

func (l ipLayer) wrapARP(factory gstack.NetworkProtocolFactory) gstack.NetworkProtocolFactory {
	return func(g *gstack.Stack) gstack.NetworkProtocol { return arpProtocol{factory(g), l} }
}

func (l ipLayer) wrapIPv4(factory gstack.NetworkProtocolFactory) gstack.NetworkProtocolFactory {
	return wrapProtocol(factory,
		func(p ipv4Whole) gstack.NetworkProtocol { return ipv4Watched{p, l} })
}

func (l ipLayer) wrapIPv6(factory gstack.NetworkProtocolFactory) gstack.NetworkProtocolFactory {
	return wrapProtocol(factory,
		func(p ipv6Whole) gstack.NetworkProtocol { return ipv6Watched{p, l} })
}

// wrapProtocol applies wrap to what factory makes, if netstack finds all it wants in it.
func wrapProtocol[Whole gstack.NetworkProtocol](factory gstack.NetworkProtocolFactory,
	wrap func(Whole) gstack.NetworkProtocol) gstack.NetworkProtocolFactory {
	return func(g *gstack.Stack) gstack.NetworkProtocol {
		p := factory(g)
		if whole, ok := p.(Whole); ok {
			return wrap(whole)
		}
		return p
	}
}

// ipv4Whole lists what netstack wants of the IPv4 protocol.
type ipv4Whole interface {
	gstack.NetworkProtocol
	gstack.MulticastForwardingNetworkProtocol
	gstack.RejectIPv4WithHandler
}

// ipv4Watched wraps netstack's IPv4, with joins noted.
type ipv4Watched struct {
	ipv4Whole
	layer ipLayer
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p ipv4Watched) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	d = p.layer.errors.dispatch(false, d)
	if nic.ID() != nicID {
		return p.ipv4Whole.NewEndpoint(nic, d)
	}
	i := &neighbours.NIC{NetworkInterface: limitMTU(nic, p.layer.limit4),
		Table: p.layer.neighbours, Protocol: ipv4Protocol}
	ep := p.ipv4Whole.NewEndpoint(i, d)
	if full, ok := ep.(ipv4Host); ok {
		i.Failed = full.HandleLinkResolutionFailure
		return &ipv4Endpoint{full, nic, p.layer}
	}
	return ep
}

// ipv4Host lists what netstack wants of an IPv4 endpoint.
type ipv4Host interface {
	gstack.NetworkEndpoint
	gstack.AddressableEndpoint
	gstack.GroupAddressableEndpoint
	gstack.LinkResolvableNetworkEndpoint
	gstack.ForwardingNetworkEndpoint
	gstack.MulticastForwardingNetworkEndpoint
	ipv4.IGMPEndpoint
}

// ipv4Endpoint is netstack's IPv4 on one interface, with joins noted.
type ipv4Endpoint struct {
	ipv4Host
	nic   gstack.NetworkInterface
	layer ipLayer
}

// JoinGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv4Endpoint) JoinGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv4Host.JoinGroup(group)
	if err == nil {
		e.layer.addrs.CountGroup(group, 1)
	}
	return err
}

// LeaveGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv4Endpoint) LeaveGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv4Host.LeaveGroup(group)
	if err == nil {
		e.layer.addrs.CountGroup(group, -1)
	}
	return err
}

// JoinGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv6Endpoint) JoinGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv6Host.JoinGroup(group)
	if err == nil {
		e.layer.addrs.CountGroup(group, 1)
	}
	return err
}

// LeaveGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv6Endpoint) LeaveGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv6Host.LeaveGroup(group)
	if err == nil {
		e.layer.addrs.CountGroup(group, -1)
	}
	return err
}

// AddAndAcquirePermanentAddress implements gstack.AddressableEndpoint: an address has a group.
func (e *ipv6Endpoint) AddAndAcquirePermanentAddress(a tcpip.AddressWithPrefix,
	p gstack.AddressProperties) (gstack.AddressEndpoint, tcpip.Error) {
	defer e.layer.addrs.GroupsChanged()
	return e.ipv6Host.AddAndAcquirePermanentAddress(a, p)
}

// RemovePermanentAddress implements gstack.AddressableEndpoint.
func (e *ipv6Endpoint) RemovePermanentAddress(a tcpip.Address) tcpip.Error {
	defer e.layer.addrs.GroupsChanged()
	return e.ipv6Host.RemovePermanentAddress(a)
}

// ipv6Whole lists what netstack wants of the IPv6 protocol.
type ipv6Whole interface {
	gstack.NetworkProtocol
	gstack.MulticastForwardingNetworkProtocol
	gstack.RejectIPv6WithHandler
}

// ipv6Watched wraps netstack's IPv6, with neighbour discovery inspected.
type ipv6Watched struct {
	ipv6Whole
	layer ipLayer
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p ipv6Watched) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	d = p.layer.errors.dispatch(true, d)
	if nic.ID() != nicID {
		return p.ipv6Whole.NewEndpoint(nic, d)
	}
	i := &neighbours.NIC{NetworkInterface: limitMTU(nic, p.layer.limit6),
		Table: p.layer.neighbours, Protocol: ipv6Protocol}
	ep := p.ipv6Whole.NewEndpoint(i, d)
	if full, ok := ep.(ipv6Host); ok {
		i.Failed = full.HandleLinkResolutionFailure
		return &ipv6Endpoint{full, nic, i, p.layer}
	}
	return ep
}

// ipv6Host lists what netstack wants of an IPv6 endpoint.
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
	nic        gstack.NetworkInterface
	neighbours *neighbours.NIC
	layer      ipLayer
}

// HandlePacket implements gstack.NetworkEndpoint. Beside the kernel a neighbour solicitation is
// heard only.
func (e *ipv6Endpoint) HandlePacket(pkt *gstack.PacketBuffer) {
	if e.mustNotAnswer(pkt) {
		e.layer.errors.dropped.Increment()
		return
	}
	if h, ok := pkt.Data().PullUp(header.IPv6MinimumSize); ok {
		ip := header.IPv6(h)
		if tcpip.TransportProtocolNumber(ip.NextHeader()) == header.ICMPv6ProtocolNumber &&
			ip.HopLimit() == header.NDPHopLimit {
			if e.layer.beside && e.heardSolicitation(pkt) {
				return
			}
			if !e.layer.beside {
				e.layer.addrs.HeardNDP(pkt, e.nic)
			}
		}
	}
	if ep, ok := e.layer.acquireLocal(e.ipv6Host, header.IPv6MinimumSize, pkt); !ok {
		return
	} else if ep != nil {
		defer ep.DecRef()
	}
	e.ipv6Host.HandlePacket(pkt)
}

// heardSolicitation reports whether a packet is a neighbour solicitation, and if it asks for an
// address of ours notes who does, as ndisc_recv_ns of Linux's net/ipv6/ndisc.c does.
func (e *ipv6Endpoint) heardSolicitation(pkt *gstack.PacketBuffer) bool {
	const least = header.IPv6MinimumSize + header.ICMPv6MinimumSize
	h, ok := pkt.Data().PullUp(least)
	if !ok || header.ICMPv6(h[header.IPv6MinimumSize:]).Type() != header.ICMPv6NeighborSolicit {
		return false
	}
	from, target, mac, ok := addrconf.ParseSolicitation(pkt.Data().AsRange().ToSlice())
	if ok && e.nic.CheckLocalAddress(ipv6Protocol, target) {
		_ = e.neighbours.HandleNeighborProbe(ipv6Protocol, from, mac)
	}
	return true
}

// arpProtocol wraps netstack's ARP, with its packets inspected.
type arpProtocol struct {
	gstack.NetworkProtocol
	layer ipLayer
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p arpProtocol) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	if nic.ID() != nicID {
		return p.NetworkProtocol.NewEndpoint(nic, d)
	}
	i := &neighbours.NIC{NetworkInterface: nic, Table: p.layer.neighbours, Protocol: ipv4Protocol}
	ep := p.NetworkProtocol.NewEndpoint(i, d)
	if full, ok := ep.(arpHost); ok {
		return arpEndpoint{full, i, p.layer}
	}
	return ep
}

// arpHost is what netstack wants of an ARP endpoint.
type arpHost interface {
	gstack.NetworkEndpoint
	gstack.DuplicateAddressDetector
	gstack.LinkAddressResolver
}

// arpEndpoint is netstack's ARP on one interface, with its packets inspected.
type arpEndpoint struct {
	arpHost
	nic   *neighbours.NIC
	layer ipLayer
}

// HandlePacket implements gstack.NetworkEndpoint. Netstack would answer for a broadcast address of
// ours. Beside the kernel, which answers, packets are heard only, and no address is defended: Linux
// defends none.
func (e arpEndpoint) HandlePacket(pkt *gstack.PacketBuffer) {
	if h, ok := pkt.Data().PullUp(header.ARPSize); ok && header.ARP(h).IsValid() {
		if !e.layer.beside {
			e.layer.addrs.HeardARP(header.ARP(h), e.nic)
		}
		e.nic.HeardARP(header.ARP(h), !inGroupFrame(pkt))
		if e.layer.beside {
			return
		}
		target := tcpip.AddrFrom4Slice(header.ARP(h).ProtocolAddressTarget())
		if e.nic.IsBroadcast(target) {
			return
		}
	}
	e.arpHost.HandlePacket(pkt)
}

// AcquireOutgoingPrimaryAddress implements gstack.AddressableEndpoint. hint is addrconf's, of the
// route.
func (e *ipv4Endpoint) AcquireOutgoingPrimaryAddress(remote, hint tcpip.Address,
	allowExpired bool) gstack.AddressEndpoint {
	if s := e.layer.addrs.Sources(); s.Several4.Load() {
		a := s.Choose4(e.PrimaryAddresses(), remote, hint)
		if ep := acquire(e.ipv4Host, a); ep != nil {
			return ep
		}
	}
	return e.ipv4Host.AcquireOutgoingPrimaryAddress(remote, hint, allowExpired)
}

// AcquireOutgoingPrimaryAddress implements gstack.AddressableEndpoint. hint is addrconf's, of the
// route.
func (e *ipv6Endpoint) AcquireOutgoingPrimaryAddress(remote, hint tcpip.Address,
	allowExpired bool) gstack.AddressEndpoint {
	if s := e.layer.addrs.Sources(); s.Several6.Load() {
		a := s.Choose6(e.PrimaryAddresses(), remote, hint, e.deprecated)
		if ep := acquire(e.ipv6Host, a); ep != nil {
			return ep
		}
	}
	return e.ipv6Host.AcquireOutgoingPrimaryAddress(remote, hint, allowExpired)
}

// acquire takes a reference to one of e's addresses; nil: it is no longer one.
func acquire(e gstack.AddressableEndpoint, a tcpip.Address) gstack.AddressEndpoint {
	if a.Len() == 0 {
		return nil
	}
	return e.AcquireAssignedAddress(a, false, gstack.NeverPrimaryEndpoint, false)
}

// deprecated says whether a is to be avoided as a source: its preferred lifetime is over.
func (e *ipv6Endpoint) deprecated(a tcpip.Address) bool {
	ep := acquire(e.ipv6Host, a)
	if ep == nil {
		return false
	}
	defer ep.DecRef()
	return ep.Deprecated()
}
