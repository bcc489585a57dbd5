package rdma

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// arrival is what decides whose a received frame is.
type arrival struct {
	kind      arrivalKind
	syn       bool // of a segment: it begins a connection
	socket    socketKind
	listed    bool // its flow is one of Steering.Flows
	newcomers bool // of a datagram: its port is one of Steering.Ports
}

type arrivalKind uint8

const (
	kindSingle arrivalKind = iota // of no flow: ARP and echo requests, to a group, fragments
	kindBoth                      // of interest to all who have the address
	kindTCP                       // of TCP
	kindUDP                       // of UDP
)

type socketKind uint8

const (
	noSocket socketKind = iota
	listening
	connection
	timeWait
)

func (a arrival) flow() bool { return a.kind == kindTCP || a.kind == kindUDP }

// arrived finds out what a frame is that has been parsed, and its flow if it has one.
func (w *worker) arrived(frame []byte, l *hdr.Packet, s *Steering) (a arrival, f Flow) {
	a.kind = arrivalKindOf(frame, l)
	if !a.flow() {
		return a, f
	}
	f = flowOf(frame, l)
	a.listed = s.Flows.Has(f)
	state, found := w.attachment.networks.Load().socket(l.EtherType, f)
	if a.kind == kindUDP {
		a.newcomers = s.Ports[f.LocalPort]
		a.socket = udpSocketKind(state, found)
	} else {
		a.syn = frame[l.L4+13]&(hdr.FlagSYN|hdr.FlagACK) == hdr.FlagSYN
		a.socket = tcpSocketKind(state, found)
	}
	return a, f
}

func tcpSocketKind(state uint32, found bool) socketKind {
	switch {
	case !found:
		return noSocket
	case tcp.EndpointState(state) == tcp.StateListen:
		return listening
	case tcp.EndpointState(state) == tcp.StateTimeWait:
		return timeWait
	}
	return connection
}

func udpSocketKind(state uint32, found bool) socketKind {
	switch {
	case !found:
		return noSocket
	case transport.DatagramEndpointState(state) == transport.DatagramEndpointStateConnected:
		return connection
	}
	return listening
}

const (
	typeARP  = 0x0806
	arpReply = 2
)

func arrivalKindOf(frame []byte, l *hdr.Packet) arrivalKind {
	switch {
	case l.EtherType == typeARP:
		if len(frame) >= hdr.EthLen+8 && binary.BigEndian.Uint16(frame[hdr.EthLen+6:]) == arpReply {
			return kindBoth
		}
	case l.IsTCP():
		return kindTCP
	case l.L4 == 0 || l.End-l.L4 < hdr.UDPLen:
	case l.Proto == hdr.ProtoUDP:
		switch binary.BigEndian.Uint16(frame[l.L4+2:]) {
		case 68, 546: // DHCP's clients: each knows its own answers
			return kindBoth
		}
		if frame[0]&1 == 0 { // not to a group
			return kindUDP
		}
	case l.Proto == hdr.ProtoICMP && isICMPError(frame[l.L4]),
		l.Proto == hdr.ProtoICMPv6 && concernsBothV6(frame[l.L4]):
		return kindBoth
	}
	return kindSingle
}

// isICMPError is true for what tells of a packet that was sent: unreachable, time exceeded,
// parameter problem (RFC 792).
func isICMPError(kind byte) bool { return kind == 3 || kind == 11 || kind == 12 }

// concernsBothV6 is true for errors (RFC 4443), router and neighbour advertisements (RFC 4861).
func concernsBothV6(kind byte) bool { return kind >= 1 && kind <= 4 || kind == 134 || kind == 136 }

// socket is the state of the socket that netstack would give a segment or datagram of a flow to.
func (n *networks) socket(etherType uint16, f Flow) (state uint32, found bool) {
	if n == nil {
		return 0, false
	}
	ep, ok := n.stack.FindTransportEndpoint(tcpip.NetworkProtocolNumber(etherType),
		tcpip.TransportProtocolNumber(f.Proto), gstack.TransportEndpointID{
			LocalAddress: f.Local, LocalPort: f.LocalPort,
			RemoteAddress: f.Remote, RemotePort: f.RemotePort,
		}, n.nic).(interface{ State() uint32 })
	if !ok {
		return 0, false
	}
	return ep.State(), true
}
