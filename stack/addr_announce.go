package stack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// announceAgain is when an announcement is repeated, in case the first was lost (RFC 5227's
// ANNOUNCE_INTERVAL).
const announceAgain = 2 * time.Second

// announceTwice tells the neighbours now and once more.
func (s *Stack) announceTwice() {
	s.Announce()
	s.announcer.Reset(announceAgain)
}

// Announce tells every neighbour that our addresses are at our hardware address: by gratuitous ARP
// (RFC 5227 section 2.3) and unsolicited neighbour advertisements (RFC 4861 section 7.2.6). It is
// done at start and when the device's link has come up again; call it when an address has moved
// here from another host.
func (s *Stack) Announce() {
	if s.closed.Load() {
		return
	}
	for _, p := range s.Addrs() {
		s.announce(p.Addr())
	}
}

// announce is Announce for one address.
func (s *Stack) announce(a netip.Addr) {
	mac := tcpip.LinkAddress(s.HardwareAddr())
	switch {
	case !s.resolves || !header.IsValidUnicastEthernetAddress(mac):
	case a.Is4():
		s.gratuitousARP(mac, a)
	default:
		s.unsolicitedNA(mac, a)
	}
}

// gratuitousARP broadcasts a request for our own address, which every cache learns from.
func (s *Stack) gratuitousARP(mac tcpip.LinkAddress, a netip.Addr) {
	packet := make(header.ARP, header.ARPSize)
	packet.SetIPv4OverEthernet()
	packet.SetOp(header.ARPRequest)
	copy(packet.HardwareAddressSender(), mac)
	copy(packet.ProtocolAddressSender(), a.AsSlice())
	copy(packet.ProtocolAddressTarget(), a.AsSlice())
	s.net.WritePacketToRemote(nicID, header.EthernetBroadcastAddress, header.ARPProtocolNumber,
		buffer.MakeWithData(packet))
}

// unsolicitedNA multicasts a neighbour advertisement that overrides cached entries.
func (s *Stack) unsolicitedNA(mac tcpip.LinkAddress, a netip.Addr) {
	const options = header.NDPLinkLayerAddressSize
	icmp := make(header.ICMPv6, header.ICMPv6NeighborAdvertMinimumSize+options)
	icmp.SetType(header.ICMPv6NeighborAdvert)
	na := header.NDPNeighborAdvert(icmp.MessageBody())
	na.SetTargetAddress(toAddress(a))
	na.SetOverrideFlag(true)
	na.Options().Serialize(header.NDPOptionsSerializer{header.NDPTargetLinkLayerAddressOption(mac)})
	s.multicast(icmp, toAddress(a), header.IPv6AllNodesMulticastAddress)
}

// solicitRouter asks the link's routers to advertise themselves now (RFC 4861 section 6.3.7).
func (s *Stack) solicitRouter() {
	mac := tcpip.LinkAddress(s.HardwareAddr())
	if !header.IsValidUnicastEthernetAddress(mac) {
		return
	}
	const options = header.NDPLinkLayerAddressSize
	icmp := make(header.ICMPv6, header.ICMPv6HeaderSize+header.NDPRSMinimumSize+options)
	icmp.SetType(header.ICMPv6RouterSolicit)
	rs := header.NDPRouterSolicit(icmp.MessageBody())
	rs.Options().Serialize(header.NDPOptionsSerializer{header.NDPSourceLinkLayerAddressOption(mac)})
	s.multicast(icmp, header.LinkLocalAddr(mac), header.IPv6AllRoutersLinkLocalMulticastAddress)
}

// multicast sends a message of neighbour discovery, whose checksum it fills in.
func (s *Stack) multicast(icmp header.ICMPv6, from, to tcpip.Address) {
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: from,
		Dst: to}))
	packet := make(header.IPv6, header.IPv6MinimumSize, header.IPv6MinimumSize+len(icmp))
	packet.Encode(&header.IPv6Fields{
		PayloadLength:     uint16(len(icmp)),
		TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit:          header.NDPHopLimit,
		SrcAddr:           from,
		DstAddr:           to,
	})
	packet = append(packet, icmp...)
	s.net.WritePacketToRemote(nicID, header.EthernetAddressFromMulticastIPv6Address(to),
		header.IPv6ProtocolNumber, buffer.MakeWithData(packet))
}
