package sim

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// hostSockets represents packet sockets with the MAC of their netdev, which get what is for ports
// that they are told, ICMP errors about what these have sent, ARP and what tells of neighbours.
type hostSockets struct {
	*sockets

	ports map[packet.Ports]bool // guarded by dev.mu
}

var _ packet.Netdev = (*hostSockets)(nil)

func (s *hostSockets) Driver() string { return "model" }

// SetMAC implements packet.Netdev.
func (s *hostSockets) SetMAC(mac net.HardwareAddr) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.cfg.MAC = slices.Clone(mac)
	return nil
}

// MAC implements packet.Interface.
func (s *hostSockets) MAC() net.HardwareAddr {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.cfg.MAC
}

// SetPorts implements packet.Netdev.
func (s *hostSockets) SetPorts(list []packet.Ports) error {
	s.dev.mu.Lock()
	clear(s.ports)
	s.dev.mu.Unlock()
	return s.ChangePorts(list, nil)
}

// ChangePorts implements packet.Netdev.
func (s *hostSockets) ChangePorts(added, removed []packet.Ports) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	for _, p := range removed {
		delete(s.ports, p)
	}
	for _, p := range added {
		s.ports[p] = true
	}
	return nil
}

// Stats implements packet.Netdev.
func (s *hostSockets) Stats() packet.Stats {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return packet.Stats{Rx: []packet.RxStats{{Frames: s.past.Received}},
		LinkUp: !s.dev.down && !s.dev.gone}
}

// takes reports whether a frame is for the stack, with dev.mu held. Fragments are left out: worlds
// with these sockets have none.
func (s *hostSockets) takes(f []byte) bool {
	if to, ok := destinationOf(f); ok {
		ours := s.owns(to)
		if ours && (to.at.Port() >= firstOfBlocks || opens(f)) {
			s.dev.unsteered++
		}
		return ours
	}
	if len(f) < header.EthernetMinimumSize {
		return false
	}
	ip := f[header.EthernetMinimumSize:]
	switch header.Ethernet(f).Type() {
	case header.ARPProtocolNumber:
		return true
	case header.IPv4ProtocolNumber:
		return len(ip) > header.IPv4MinimumSize+header.ICMPv4MinimumSize &&
			header.IPv4(ip).TransportProtocol() == header.ICMPv4ProtocolNumber &&
			s.told(header.ICMPv4(ip[header.IPv4MinimumSize:]))
	case header.IPv6ProtocolNumber:
		if len(ip) <= header.IPv6MinimumSize+header.ICMPv6MinimumSize ||
			header.IPv6(ip).NextHeader() != uint8(header.ICMPv6ProtocolNumber) {
			return false
		}
		icmp := header.ICMPv6(ip[header.IPv6MinimumSize:])
		return icmp.Type() == header.ICMPv6NeighborSolicit ||
			icmp.Type() == header.ICMPv6NeighborAdvert || icmp.Type() < 128 &&
			s.sent(icmp[header.ICMPv6MinimumSize:])
	}
	return false
}

// opens reports whether a frame with a port is a SYN that opens a connection.
func opens(f []byte) bool {
	p, at, _ := transportOf(f)
	const both = header.TCPFlagSyn | header.TCPFlagAck
	return p == backing.TCP && len(f) >= at+header.TCPMinimumSize &&
		header.TCP(f[at:]).Flags()&both == header.TCPFlagSyn
}

// told reports whether an ICMP message is an error about what ports of ours have sent.
func (s *hostSockets) told(m header.ICMPv4) bool {
	switch m.Type() {
	case header.ICMPv4DstUnreachable, header.ICMPv4TimeExceeded, header.ICMPv4ParamProblem:
		return s.sent(m[header.ICMPv4MinimumSize:])
	}
	return false
}

// sent reports whether the packet that begins so was sent by ports of ours.
func (s *hostSockets) sent(ip []byte) bool {
	f := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(ip))
	kind := header.IPv4ProtocolNumber
	if len(ip) > 0 && ip[0]>>4 == header.IPv6Version {
		kind = header.IPv6ProtocolNumber
	}
	header.Ethernet(f).Encode(&header.EthernetFields{Type: kind})
	f = append(f, ip...)
	protocol, at, ok := transportOf(f)
	if !ok {
		return false
	}
	src, _ := netip.AddrFromSlice(ip[12:16])
	if kind == header.IPv6ProtocolNumber {
		src, _ = netip.AddrFromSlice(ip[8:24])
	}
	return s.owns(socketKey{protocol, netip.AddrPortFrom(src, uint16(f[at])<<8|uint16(f[at+1]))})
}

// owns reports whether the stack was given a port.
func (s *hostSockets) owns(k socketKey) bool {
	udp := k.protocol == backing.UDP
	if s.ports[packet.Ports{UDP: udp, Addr: k.at.Addr(), First: k.at.Port(), Last: k.at.Port()}] {
		return true
	}
	first := k.at.Port() &^ 0xff
	return s.ports[packet.Ports{UDP: udp, Addr: k.at.Addr(), First: first, Last: first + 0xff}]
}

// openHostSockets implements stack.Config.Uplink.OpenInterface for a host on its own address.
func (h *ourHost) openHostSockets(cfg packet.Config) (packet.Interface, error) {
	k := h.kernel
	k.mu.Lock()
	err := k.there(cfg.Device)
	cfg.MAC = slices.Clone(k.mac)
	k.mu.Unlock()
	if err != nil || !cfg.Host {
		return nil, fmt.Errorf("open sockets of the host's address, %v: %w", cfg.Host, err)
	}
	d := h.netdev
	d.mu.Lock()
	d.name = cfg.Device
	d.mu.Unlock()
	p, err := d.openSockets(cfg)
	if err != nil {
		return nil, err
	}
	s := &hostSockets{sockets: p.(*sockets), ports: map[packet.Ports]bool{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.only = s.takes
	return s, nil
}
