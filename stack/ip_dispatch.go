package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
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

// inGroupFrame reports whether a packet came in a frame to a group or to all.
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
		e.errors.dropped.Increment()
		return
	}
	e.ipv4Host.HandlePacket(pkt)
}

// WritePacket implements gstack.NetworkEndpoint.
func (e *ipv4Endpoint) WritePacket(r *gstack.Route, params gstack.NetworkHeaderParams,
	pkt *gstack.PacketBuffer) tcpip.Error {
	if params.Protocol == tcp.ProtocolNumber {
		e.errors.sends(r, pkt)
	}
	return e.ipv4Host.WritePacket(r, params, pkt)
}

// WritePacket implements gstack.NetworkEndpoint.
func (e *ipv6Endpoint) WritePacket(r *gstack.Route, params gstack.NetworkHeaderParams,
	pkt *gstack.PacketBuffer) tcpip.Error {
	if params.Protocol == tcp.ProtocolNumber {
		e.watch.errors.sends(r, pkt)
	}
	return e.ipv6Host.WritePacket(r, params, pkt)
}
