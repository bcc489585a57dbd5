package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/qdisc/fifo"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// gvisorHost is netstack with its own adapters (gonet), as its users run it.
type gvisorHost struct {
	stack *gstack.Stack
	addr  tcpip.FullAddress
}

const gvisorNIC = 1

// openGvisor makes the server's end on a link to the kernel.
func openGvisor(e end) (host, error) {
	link, err := openLink(e)
	if err != nil {
		return nil, err
	}
	var opts gstack.NICOptions
	if e.FIFO {
		opts.QDisc = fifo.New(link, runtime.GOMAXPROCS(0), 1000) // as in runsc
	}
	return newGvisor(link, serverPrefix, opts)
}

// newGvisor makes a stack on link, with the options of our stack where netstack's defaults differ.
func newGvisor(link gstack.LinkEndpoint, at netip.Prefix,
	opts gstack.NICOptions) (*gvisorHost, error) {
	s := gstack.New(gstack.Options{
		NetworkProtocols: []gstack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocolCUBIC,
			udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := errors.Join(tuneGvisor(s), addInterface(s, link, at, opts)); err != nil {
		s.Destroy()
		return nil, err
	}
	addr := tcpip.FullAddress{NIC: gvisorNIC, Addr: tcpip.AddrFromSlice(at.Addr().AsSlice())}
	return &gvisorHost{s, addr}, nil
}

func tuneGvisor(s *gstack.Stack) error {
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: tcpStart, Max: tcpSendMax}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10,
		Default: tcpStart, Max: tcpRecvMax}
	wait := tcpip.TCPTimeWaitTimeoutOption(timeWait)
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &receive, &wait} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("set %T: %s", o, err)
		}
	}
	if err := s.SetOption(tcpip.SendBufferSizeOption{Min: 4 << 10, Default: udpBuffer,
		Max: udpBuffer}); err != nil {
		return fmt.Errorf("set send buffer: %s", err)
	}
	if err := s.SetOption(tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: udpBuffer,
		Max: udpBuffer}); err != nil {
		return fmt.Errorf("set receive buffer: %s", err)
	}
	return nil
}

func addInterface(s *gstack.Stack, link gstack.LinkEndpoint, at netip.Prefix,
	opts gstack.NICOptions) error {
	if err := s.CreateNICWithOptions(gvisorNIC, link, opts); err != nil {
		return fmt.Errorf("create NIC: %s", err)
	}
	address := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(at.Addr().AsSlice()),
		PrefixLen: at.Bits()}
	protocol := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: address}
	if err := s.AddProtocolAddress(gvisorNIC, protocol, gstack.AddressProperties{}); err != nil {
		return fmt.Errorf("add address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: address.Subnet(), NIC: gvisorNIC}})
	return nil
}

func (h *gvisorHost) at(port int) tcpip.FullAddress {
	a := h.addr
	a.Port = uint16(port)
	return a
}

func (h *gvisorHost) Listen(port int) (net.Listener, error) {
	return gonet.ListenTCP(h.stack, h.at(port), ipv4.ProtocolNumber)
}

func (h *gvisorHost) ListenUDP(port int) (net.PacketConn, error) {
	local := h.at(port)
	return gonet.DialUDP(h.stack, &local, nil, ipv4.ProtocolNumber)
}

func (h *gvisorHost) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	remote := tcpip.FullAddress{NIC: gvisorNIC, Addr: tcpip.AddrFromSlice(at.Addr().AsSlice()),
		Port: at.Port()}
	if network == "udp" {
		return gonet.DialUDP(h.stack, nil, &remote, ipv4.ProtocolNumber)
	}
	return gonet.DialContextTCP(ctx, h.stack, remote, ipv4.ProtocolNumber)
}

// Close only stops the sockets: the process exits next, and some links never end.
func (h *gvisorHost) Close() error {
	h.stack.Close()
	return nil
}
