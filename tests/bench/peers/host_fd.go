package main

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// openLink opens gVisor's link to the kernel, on the interface of the process's namespace.
func openLink(e end) (gstack.LinkEndpoint, error) {
	if e.Link == linkXDP {
		return openXDP(e.Native)
	}
	fd, err := openFD(e)
	if err != nil {
		return nil, err
	}
	opts := &fdbased.Options{
		FDs: []int{fd}, MTU: 1500, EthernetHeader: true, Address: tcpip.LinkAddress(serverMAC),
		PacketDispatchMode: dispatchModes[e.Dispatch], GRO: e.GRO,
		// The checksums need no check: the kernel has verified them or, on veth and packet sockets,
		// not computed them yet.
		RXChecksumOffload: true,
	}
	if e.Inline {
		opts.ProcessorsPerChannel = 1
	}
	if e.GSO != "" {
		opts.GSOMaxSize, opts.GVisorGSOEnabled = 65536, e.GSO == "gvisor"
	}
	return fdbased.New(opts)
}

var dispatchModes = map[string]fdbased.PacketDispatchMode{
	"readv": fdbased.Readv, "recvmmsg": fdbased.RecvMMsg, "mmap": fdbased.PacketMMap,
}

// openFD opens a packet socket on the interface, or makes the interface if it is a TAP and opens
// it.
func openFD(e end) (int, error) {
	ifc, err := net.InterfaceByName(port)
	if err != nil {
		return openTAP()
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(ethPAll))
	if err != nil {
		return 0, fmt.Errorf("packet socket: %w", err)
	}
	if e.GSO == "host" {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	}
	promiscuous := &unix.PacketMreq{Ifindex: int32(ifc.Index), Type: unix.PACKET_MR_PROMISC}
	const size = 4 << 20 // as in runsc
	return fd, errors.Join(err,
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, promiscuous),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: ifc.Index}))
}

// ethPAll is ETH_P_ALL in network byte order.
const ethPAll = unix.ETH_P_ALL << 8

// openTAP makes the interface and returns its file descriptor.
func openTAP() (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(port)
	if err != nil {
		return 0, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return 0, fmt.Errorf("make TAP: %w", err)
	}
	return fd, nil
}
