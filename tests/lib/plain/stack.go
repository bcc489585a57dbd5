// Package plain is netstack without anything of ours: its own sockets for Go (gonet), and a link in
// memory that does nothing. It is what the stack is compared with.
package plain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Settings in which netstack's defaults differ from those of package stack, in bytes.
const (
	UDPBuffer  = 4 << 20 // each way
	tcpSendMax = 8 << 20
	tcpRecvMax = 8 << 20
	tcpStart   = 1 << 20
)

// TimeWait is how long a closed connection keeps its port: short, so that a measurement of new
// connections does not use up the ports of the next.
const TimeWait = 10 * time.Millisecond

// Host is netstack with one address on one link. Its methods may be called at once.
type Host struct {
	stack *gstack.Stack
	addr  tcpip.FullAddress
}

const nic = 1

// New opens a stack on link, which it then owns, with IPv4.
func New(link gstack.LinkEndpoint, at netip.Prefix, opts gstack.NICOptions) (*Host, error) {
	s := gstack.New(gstack.Options{
		NetworkProtocols: []gstack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocolCUBIC,
			udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := errors.Join(tune(s), addInterface(s, link, at, opts)); err != nil {
		s.Destroy()
		return nil, err
	}
	addr := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(at.Addr().AsSlice())}
	return &Host{s, addr}, nil
}

func tune(s *gstack.Stack) error {
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: tcpStart, Max: tcpSendMax}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10,
		Default: tcpStart, Max: tcpRecvMax}
	wait := tcpip.TCPTimeWaitTimeoutOption(TimeWait)
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &receive, &wait} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("set %T: %s", o, err)
		}
	}
	if err := s.SetOption(tcpip.SendBufferSizeOption{Min: 4 << 10, Default: UDPBuffer,
		Max: UDPBuffer}); err != nil {
		return fmt.Errorf("set send buffer: %s", err)
	}
	if err := s.SetOption(tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: UDPBuffer,
		Max: UDPBuffer}); err != nil {
		return fmt.Errorf("set receive buffer: %s", err)
	}
	return nil
}

func addInterface(s *gstack.Stack, link gstack.LinkEndpoint, at netip.Prefix,
	opts gstack.NICOptions) error {
	if err := s.CreateNICWithOptions(nic, link, opts); err != nil {
		return fmt.Errorf("create NIC: %s", err)
	}
	address := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(at.Addr().AsSlice()),
		PrefixLen: at.Bits()}
	protocol := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: address}
	if err := s.AddProtocolAddress(nic, protocol, gstack.AddressProperties{}); err != nil {
		return fmt.Errorf("add address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: address.Subnet(), NIC: nic}})
	return nil
}

func (h *Host) at(port int) tcpip.FullAddress {
	a := h.addr
	a.Port = uint16(port)
	return a
}

// Listen opens a TCP port.
func (h *Host) Listen(port int) (net.Listener, error) {
	return gonet.ListenTCP(h.stack, h.at(port), ipv4.ProtocolNumber)
}

// ListenUDP opens a UDP port.
func (h *Host) ListenUDP(port int) (net.PacketConn, error) {
	local := h.at(port)
	return gonet.DialUDP(h.stack, &local, nil, ipv4.ProtocolNumber)
}

// Dial connects by "tcp" or "udp".
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	remote := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(at.Addr().AsSlice()),
		Port: at.Port()}
	if network == "udp" {
		return gonet.DialUDP(h.stack, nil, &remote, ipv4.ProtocolNumber)
	}
	return gonet.DialContextTCP(ctx, h.stack, remote, ipv4.ProtocolNumber)
}

// Close stops the sockets. It does not wait for the link, as some never end: end the process next.
func (h *Host) Close() error {
	h.stack.Close()
	return nil
}
