package rdma_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// The endpoint is the link of a gVisor stack of one's own. Package stack does this, and gives the
// sockets the behaviour of package net.
func ExampleNew() {
	near, far := wire.Pair()
	server, closeServer := host(near, "192.0.2.1")
	defer closeServer()
	client, closeClient := host(far, "192.0.2.2")
	defer closeClient()

	at := tcpip.FullAddress{Addr: tcpip.AddrFrom4([4]byte{192, 0, 2, 1}), Port: 7}
	ln, err := gonet.ListenTCP(server, at, ipv4.ProtocolNumber)
	check(err)
	go func() {
		conn, err := ln.Accept()
		check(err)
		io.WriteString(conn, "hello")
		conn.Close()
	}()
	conn, err := gonet.DialTCP(client, at, ipv4.ProtocolNumber)
	check(err)
	defer conn.Close()
	text, err := io.ReadAll(conn)
	check(err)
	fmt.Println(string(text))
	// Output: hello
}

// host is a gVisor stack on a software NIC at the end of a wire. On hardware,
// dv.Config{NIC: dv.NIC{Device: "mlx5_0"}} is all that differs.
func host(w wire.Wire, address string) (s *gstack.Stack, done func()) {
	nic, err := simnic.New(simnic.Config{})
	check(err)
	check(nic.ConnectWire(w))
	dev, err := dv.Open(context.Background(), dv.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC()},
			},
		},
	})
	check(err)
	link, err := rdma.New(dev, rdma.Options{})
	check(err)

	s = gstack.New(gstack.Options{
		NetworkProtocols:   []gstack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocol},
	})
	ip := tcpip.AddrFromSlice(netip.MustParseAddr(address).AsSlice())
	subnet := tcpip.AddressWithPrefix{Address: ip, PrefixLen: 24}
	check(failure(s.CreateNIC(1, link)))
	check(failure(s.AddProtocolAddress(1, tcpip.ProtocolAddress{
		Protocol: ipv4.ProtocolNumber, AddressWithPrefix: subnet,
	}, gstack.AddressProperties{})))
	s.AddRoute(tcpip.Route{Destination: subnet.Subnet(), NIC: 1})
	return s, func() { // from above: the stack, the endpoint, the device
		s.Destroy()
		link.Close()
		check(dev.Close())
		check(nic.Close())
	}
}

func failure(err tcpip.Error) error {
	if err != nil {
		return fmt.Errorf("netstack: %s", err)
	}
	return nil
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
