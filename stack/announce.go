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
	s.announcer = time.AfterFunc(announceAgain, s.Announce)
}

// Announce tells every neighbour that our addresses are at our hardware address: by gratuitous ARP
// (RFC 5227 section 2.3) and unsolicited neighbour advertisements (RFC 4861 section 7.2.6). It is
// done at start; call it when an address has moved here from another host or the link came back.
func (s *Stack) Announce() {
	if s.closed.Load() {
		return
	}
	mac := tcpip.LinkAddress(s.HardwareAddr())
	if !header.IsValidUnicastEthernetAddress(mac) {
		return
	}
	for _, p := range s.Addrs() {
		if p.Addr().Is4() {
			s.gratuitousARP(mac, p.Addr())
		} else {
			s.unsolicitedNA(mac, p.Addr())
		}
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
	s.net.WritePacketToRemote(nicID, header.EthernetBroadcastAddress, header.ARPProtocolNumber, buffer.MakeWithData(packet))
}

// unsolicitedNA multicasts a neighbour advertisement that overrides cached entries.
func (s *Stack) unsolicitedNA(mac tcpip.LinkAddress, a netip.Addr) {
	const options = header.NDPLinkLayerAddressSize
	const icmpSize = header.ICMPv6NeighborAdvertMinimumSize + options
	packet := make([]byte, header.IPv6MinimumSize+icmpSize)
	from, to := toAddress(a), header.IPv6AllNodesMulticastAddress

	icmp := header.ICMPv6(packet[header.IPv6MinimumSize:])
	icmp.SetType(header.ICMPv6NeighborAdvert)
	na := header.NDPNeighborAdvert(icmp.MessageBody())
	na.SetTargetAddress(from)
	na.SetOverrideFlag(true)
	na.Options().Serialize(header.NDPOptionsSerializer{header.NDPTargetLinkLayerAddressOption(mac)})
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: from, Dst: to}))

	header.IPv6(packet).Encode(&header.IPv6Fields{
		PayloadLength:     icmpSize,
		TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit:          header.NDPHopLimit,
		SrcAddr:           from,
		DstAddr:           to,
	})
	s.net.WritePacketToRemote(nicID, header.EthernetAddressFromMulticastIPv6Address(to), header.IPv6ProtocolNumber, buffer.MakeWithData(packet))
}
