package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// watchARP wraps netstack's ARP so that c sees its packets.
func (c *claims) watchARP(factory gstack.NetworkProtocolFactory) gstack.NetworkProtocolFactory {
	return func(g *gstack.Stack) gstack.NetworkProtocol { return arpProtocol{factory(g), c} }
}

// arpProtocol is netstack's ARP, with its packets inspected.
type arpProtocol struct {
	gstack.NetworkProtocol
	claims *claims
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p arpProtocol) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	ep := p.NetworkProtocol.NewEndpoint(nic, d)
	if full, ok := ep.(arpHost); ok {
		return arpEndpoint{full, nic, p.claims}
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
	nic    gstack.NetworkInterface
	claims *claims
}

// HandlePacket implements gstack.NetworkEndpoint.
func (e arpEndpoint) HandlePacket(pkt *gstack.PacketBuffer) {
	if h, ok := pkt.Data().PullUp(header.ARPSize); ok && header.ARP(h).IsValid() {
		e.checkSender(header.ARP(h))
	}
	e.arpHost.HandlePacket(pkt)
}

// checkSender compares the sender with our addresses. A probe has the sender 0.0.0.0 and claims
// nothing (RFC 5227 section 1.1).
func (e arpEndpoint) checkSender(h header.ARP) {
	mac, sender := tcpip.LinkAddress(h.HardwareAddressSender()),
		tcpip.AddrFrom4Slice(h.ProtocolAddressSender())
	switch {
	case mac == e.claims.own:
		e.claims.twin()
	case sender != header.IPv4Any && e.nic.CheckLocalAddress(ipv4Protocol, sender):
		e.claims.conflict(sender, mac)
	}
}
