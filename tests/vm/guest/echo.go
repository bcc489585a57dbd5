//go:build linux

package main

import (
	"flag"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/stack/packets"
)

// echoServer implements the subcommand: it sends each datagram that comes to port 7 back, on the
// kernel's stack or on a slice, by reads and writes or by the handler, until it is killed.
func echoServer(args []string) error {
	fs := flag.NewFlagSet("echo", flag.ExitOnError)
	at := sideFlags(fs)
	handler := fs.Bool("handler", false, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	s, err := at.open()
	if err != nil {
		return err
	}
	if s == nil {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 7})
		if err != nil {
			return err
		}
		fmt.Println("echoing")
		return echoReads(c)
	}
	defer s.Close()
	c, err := s.ListenUDP("udp", &net.UDPAddr{Port: 7})
	if err != nil {
		return err
	}
	fmt.Println("echoing")
	if !*handler {
		return echoReads(c)
	}
	return c.ServePackets(func(_ int, ps []packets.Packet) {
		for i := range ps {
			ps[i].Reply = append(ps[i].Reply, ps[i].Payload...)
		}
	})
}

func echoReads(c interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
}) error {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		if _, err := c.WriteToUDPAddrPort(b[:n], from); err != nil {
			return err
		}
	}
}
