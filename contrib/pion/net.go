// Package pion lets pion's WebRTC, ICE and TURN use a slice: [Net] is the transport.Net of a stack,
// with the slice's interface, addresses and names, so that ICE's host candidates are the slice's
// addresses.
//
//	n := pion.New(st)
//	var settings webrtc.SettingEngine
//	settings.SetNet(n)
//
// A server with one port for all peers has it from ICE's UDP mux, on a socket that sends many
// packets at a time:
//
//	c, err := st.ListenUDP("udp4", &net.UDPAddr{Port: 3478})
//	mux := ice.NewUDPMuxDefault(ice.UDPMuxParams{UDPConn: pion.NewBatchConn(c, pion.Batch{})})
//	settings.SetICEUDPMux(mux)
//
// What pion does on descriptors does not work on a slice: candidates by multicast DNS, which it
// reads from sockets of the kernel (set ice.MulticastDNSModeDisabled), and the Control functions of
// dialers and listeners, which are not called.
//
// A module of its own has this package, so that the stack does not depend on pion.
package pion

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/pion/transport/v5"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Net implements transport.Net on a stack. Its methods may be called from any goroutine.
type Net struct{ stack *stack.Stack }

var _ transport.Net = (*Net)(nil)

// New returns the stack's.
func New(st *stack.Stack) *Net { return &Net{st} }

// ListenPacket implements transport.Net: see [stack.Stack.ListenPacket].
func (n *Net) ListenPacket(network, address string) (net.PacketConn, error) {
	return n.stack.ListenPacket(network, address)
}

// ListenUDP implements transport.Net: see [stack.Stack.ListenUDP].
func (n *Net) ListenUDP(network string, laddr *net.UDPAddr) (transport.UDPConn, error) {
	c, err := n.stack.ListenUDP(network, laddr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ListenTCP implements transport.Net: see [stack.Stack.ListenTCP].
func (n *Net) ListenTCP(network string, laddr *net.TCPAddr) (transport.TCPListener, error) {
	l, err := n.stack.ListenTCP(network, laddr)
	if err != nil {
		return nil, err
	}
	return tcpListener{l}, nil
}

// tcpListener returns connections by pion's type.
type tcpListener struct{ *stack.TCPListener }

func (l tcpListener) AcceptTCP() (transport.TCPConn, error) {
	c, err := l.TCPListener.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Dial implements transport.Net: see [stack.Stack.Dial].
func (n *Net) Dial(network, address string) (net.Conn, error) {
	return n.stack.Dial(network, address)
}

// DialUDP implements transport.Net: see [stack.Stack.DialUDP].
func (n *Net) DialUDP(network string, laddr, raddr *net.UDPAddr) (transport.UDPConn, error) {
	c, err := n.stack.DialUDP(network, laddr, raddr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialTCP implements transport.Net: see [stack.Stack.DialTCP].
func (n *Net) DialTCP(network string, laddr, raddr *net.TCPAddr) (transport.TCPConn, error) {
	c, err := n.stack.DialTCP(network, laddr, raddr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ResolveIPAddr implements transport.Net. Names are looked up over the slice.
func (n *Net) ResolveIPAddr(network, address string) (*net.IPAddr, error) {
	literal, err := n.resolveName(network, address)
	if err != nil {
		return nil, err
	}
	return net.ResolveIPAddr(network, literal)
}

// ResolveUDPAddr implements transport.Net. Names are looked up over the slice.
func (n *Net) ResolveUDPAddr(network, address string) (*net.UDPAddr, error) {
	literal, err := n.resolveHost(network, address)
	if err != nil {
		return nil, err
	}
	return net.ResolveUDPAddr(network, literal)
}

// ResolveTCPAddr implements transport.Net. Names are looked up over the slice.
func (n *Net) ResolveTCPAddr(network, address string) (*net.TCPAddr, error) {
	literal, err := n.resolveHost(network, address)
	if err != nil {
		return nil, err
	}
	return net.ResolveTCPAddr(network, literal)
}

// resolveHost returns host:port with an address in the place of a name.
func (n *Net) resolveHost(network, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address, nil // package net says what is wrong with it
	}
	host, err = n.resolveName(network, host)
	return net.JoinHostPort(host, port), err
}

// resolveName returns an address of the host, of IPv4 if there is one, as package net's Resolve
// functions do.
func (n *Net) resolveName(network, host string) (string, error) {
	if _, err := netip.ParseAddr(host); host == "" || err == nil {
		return host, nil
	}
	family := "ip"
	if last := len(network) - 1; last >= 0 && (network[last] == '4' || network[last] == '6') {
		family += network[last:]
	}
	all, err := n.stack.Resolver().LookupNetIP(context.Background(), family, host)
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if a.Unmap().Is4() {
			return a.Unmap().String(), nil
		}
	}
	return all[0].String(), nil
}

// linkIndex numbers the slice's interface where pion asks for a number.
const linkIndex = 1

// Interfaces implements transport.Net: the slice has one, with the addresses that it has now.
func (n *Net) Interfaces() ([]*transport.Interface, error) {
	i := transport.NewInterface(net.Interface{Index: linkIndex, MTU: n.stack.MTU(),
		Name: n.stack.Name(), HardwareAddr: n.stack.HardwareAddr(),
		Flags: net.FlagUp | net.FlagRunning | net.FlagBroadcast | net.FlagMulticast})
	for _, p := range n.stack.Addrs() {
		a := p.Addr()
		i.AddAddress(&net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(p.Bits(), a.BitLen())})
	}
	return []*transport.Interface{i}, nil
}

// InterfaceByIndex implements transport.Net.
func (n *Net) InterfaceByIndex(index int) (*transport.Interface, error) {
	all, _ := n.Interfaces()
	if index != linkIndex {
		return nil, fmt.Errorf("%w: index %d, the slice has %d", transport.ErrInterfaceNotFound,
			index, linkIndex)
	}
	return all[0], nil
}

// InterfaceByName implements transport.Net.
func (n *Net) InterfaceByName(name string) (*transport.Interface, error) {
	all, _ := n.Interfaces()
	if name != all[0].Name {
		return nil, fmt.Errorf("%w: %q, the slice has %q", transport.ErrInterfaceNotFound, name,
			all[0].Name)
	}
	return all[0], nil
}

// CreateDialer implements transport.Net: a dialer of the slice with d's options but Control.
func (n *Net) CreateDialer(d *net.Dialer) transport.Dialer {
	s := n.stack.Dialer()
	s.Timeout, s.Deadline, s.LocalAddr = d.Timeout, d.Deadline, d.LocalAddr
	s.FallbackDelay = d.FallbackDelay
	s.KeepAlive, s.KeepAliveConfig = d.KeepAlive, d.KeepAliveConfig
	return dialer{s}
}

type dialer struct{ *stack.Dialer }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// CreateListenConfig implements transport.Net: one of the slice with c's options but Control.
func (n *Net) CreateListenConfig(c *net.ListenConfig) transport.ListenConfig {
	s := n.stack.ListenConfig()
	s.KeepAlive, s.KeepAliveConfig = c.KeepAlive, c.KeepAliveConfig
	return s
}
