package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/plain"
)

// host is one end: a stack with sockets. The addresses are those that RFC 5737 reserves for
// documentation.
type host interface {
	Listen(port int) (net.Listener, error)
	ListenUDP(port int) (net.PacketConn, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	Close() error
}

// counting is a host with counters.
type counting interface{ counters() metrics }

var (
	clientPrefix = netip.MustParsePrefix("192.0.2.1/24")
	morePrefixes = []netip.Prefix{ // also of the client
		netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("192.0.2.3/24"),
		netip.MustParsePrefix("192.0.2.4/24"),
	}
	serverPrefix = netip.MustParsePrefix("192.0.2.10/24")

	clientMAC = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x53, 0x01}
	serverMAC = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x53, 0x10}
)

// port is the name of the interface on either end.
const port = "eth0"

// open makes the server's end.
func (e end) open() (host, error) {
	switch e.Stack {
	case stackKernel:
		return kernelHost{e.From}, nil
	case stackGvisor:
		return openGvisor(e)
	case stackOurs:
		if e.Link == linkPacket || e.Link == linkXSK {
			return openPacket(e)
		}
		return openOurs(e)
	}
	return nil, fmt.Errorf("no stack %q", e.Stack)
}

// kernelHost is the kernel of the process's own namespace. It dials from the address given, if any:
// the ports of one address are too few for the connections that are measured.
type kernelHost struct{ from netip.Addr }

func (kernelHost) Listen(port int) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return cubic(c) }}
	lc.SetMultipathTCP(false)
	return lc.Listen(context.Background(), "tcp4", fmt.Sprintf(":%d", port))
}

func (kernelHost) ListenUDP(port int) (net.PacketConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string,
		c syscall.RawConn) error {
		return growUDP(c)
	}}
	return lc.ListenPacket(context.Background(), "udp4", fmt.Sprintf(":%d", port))
}

func (h kernelHost) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if network == "tcp" {
		d.Control = func(_, _ string, c syscall.RawConn) error { return cubic(c) }
	}
	if h.from.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: h.from.AsSlice()}
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return errors.Join(cubic(c), portAtConnect(c))
		}
	}
	conn, err := d.DialContext(ctx, network, address)
	if udp, ok := conn.(*net.UDPConn); ok {
		if raw, err := udp.SyscallConn(); err == nil {
			_ = growUDP(raw)
		}
	}
	return conn, err
}

func (kernelHost) Close() error { return nil }

// cubic sets the congestion control of the other stacks, whatever this machine's is. Accepted
// connections have the listener's.
func cubic(c syscall.RawConn) (err error) {
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
	return errors.Join(control, err)
}

// portAtConnect has the kernel choose the port for the four-tuple, not for the address alone.
func portAtConnect(c syscall.RawConn) (err error) {
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
	return errors.Join(control, err)
}

// growUDP gives a kernel socket the buffers that the other stacks' sockets have.
func growUDP(c syscall.RawConn) (err error) {
	control := c.Control(func(fd uintptr) {
		if err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET,
			syscall.SO_RCVBUFFORCE, plain.UDPBuffer); err == nil {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET,
				syscall.SO_SNDBUFFORCE, plain.UDPBuffer)
		}
	})
	if control != nil {
		return control
	}
	return err
}
