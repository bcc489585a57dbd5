package hostmode

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
)

// Kernel describes what Host asks of the kernel whose addresses it shares: how the netdev is
// configured, which way the kernel would send, and ports. It stands for Linux, in the network
// namespace of the thread that called Find, or for the model of a simulation. Its methods may be
// called by any goroutine. Errors that are syscall.ENODEV say that a netdev is not there.
type Kernel interface {
	// FindNetdev returns the name of a NIC's netdev, or of the VLAN's on it.
	FindNetdev(nic dv.NIC) (name string, err error)
	// Changed returns the channel that holds a token when devices, addresses or routes have changed
	// since the last one was taken.
	Changed() <-chan struct{}
	// Read returns the configuration of the netdev called name, Below what is below it, and
	// RoutesIPv6 whether the kernel is a router of IPv6 on it.
	Read(name string) (hostnet.Network, error)
	Below(name string) (hostnet.Below, error)
	RoutesIPv6(name string) bool
	// LinkAt returns the netdev with an ifindex, LastIndex the largest of all but the one called
	// name.
	LinkAt(index int) (hostnet.Link, error)
	LastIndex(name string) (int, error)
	// WayTo says which way the kernel would send to an address; an error: it would not.
	WayTo(to netip.Addr) (hostnet.Way, error)
	// Conns lists the kernel's connections of TCP that are wanted.
	Conns(wanted func(local, remote netip.AddrPort) bool) ([]hostnet.Conn, error)
	// Dial connects from a socket of the kernel's.
	Dial(ctx context.Context, by *net.Dialer, network, address string) (net.Conn, error)
	// HoldPorts returns what takes ports from the kernel, whose sockets for them pass nothing that
	// comes by a device.
	HoldPorts(d backing.Device, c clock.Clock) Sockets
	// Close ends the questions: later ones fail with net.ErrClosed. Sockets stay.
	Close() error
}

// Sockets makes the kernel's sockets for ports of ours, which all follow one device. Its methods
// may be called by any goroutine; Close comes after that of the sockets.
type Sockets interface {
	// Open takes a port, at which nothing passes. unix.EADDRINUSE: somebody has it.
	Open(p backing.Protocol, at netip.AddrPort) (Socket, error)
	// Adopt makes a socket of a descriptor that another process has given us, which it owns.
	Adopt(p backing.Protocol, at netip.AddrPort, fd int) Socket
	// SetDevice puts d in the place of the device. Sockets follow by Socket.FollowDevice.
	SetDevice(d backing.Device)
	// Refused returns why sockets have filters of their own; nil: they share them. Own returns how
	// many have one now.
	Refused() error
	Own() int
	Close() error
}

// Socket describes the kernel's socket of one port, as [backing.Socket] has its states. Its methods
// may be called by any goroutine.
type Socket interface {
	// Listener and Conn make the kernel serve who does not come by the device. The caller closes
	// what they return, and calls Silence then.
	Listener(backlog int) (Acceptor, error)
	Conn() (Datagrams, error)
	Silence() error
	Refuse() error // the kernel begins no connection any more
	PassAllBut(others []netip.AddrPort) error
	PassNone() error
	FollowDevice() error
	Waiting() int // connections that nobody has accepted
	Duplicate() (fd int, err error)
	Close() error
}

// Acceptor accepts the kernel's connections: a [*net.TCPListener].
type Acceptor interface {
	AcceptTCP() (*net.TCPConn, error)
	SetDeadline(t time.Time) error
	Close() error
}

// Datagrams receives and sends the kernel's datagrams, with control messages of recvmsg(2): a
// [*net.UDPConn].
type Datagrams interface {
	Receive(b, oob []byte) (n, oobn int, from netip.AddrPort, err error)
	Send(b, oob []byte, to netip.AddrPort) error
	SetReadDeadline(t time.Time) error
	Close() error
}

// linux implements Kernel by rtnetlink(7) and sock_diag(7).
type linux struct {
	*hostnet.Kernel
	watcher *hostnet.Watcher
}

// openLinux returns the kernel of the calling thread's network namespace. Changes are noted from
// before.
func openLinux() (Kernel, error) {
	w, err := hostnet.Watch()
	if err != nil {
		return nil, err
	}
	k, err := hostnet.Open()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return linux{k, w}, nil
}

// FindNetdev implements Kernel.
func (linux) FindNetdev(nic dv.NIC) (name string, err error) {
	network, err := dv.NetworkOf(nic)
	return network.Netdev, err
}

// Changed implements Kernel.
func (k linux) Changed() <-chan struct{} { return k.watcher.Changed() }

// RoutesIPv6 implements Kernel.
func (linux) RoutesIPv6(name string) bool {
	b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/forwarding")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// Dial implements Kernel.
func (linux) Dial(ctx context.Context, by *net.Dialer, network, address string) (net.Conn, error) {
	return by.DialContext(ctx, network, address)
}

// HoldPorts implements Kernel.
func (linux) HoldPorts(d backing.Device, c clock.Clock) Sockets {
	return linuxSockets{backing.NewFilters(d, c)}
}

// Close implements Kernel.
func (k linux) Close() error {
	err := k.watcher.Close()
	k.Kernel.Close()
	return err
}

// linuxSockets implements Sockets.
type linuxSockets struct{ *backing.Filters }

// Open implements Sockets.
func (s linuxSockets) Open(p backing.Protocol, at netip.AddrPort) (Socket, error) {
	socket, err := backing.Open(p, at, s.Filters)
	if err != nil {
		return nil, err
	}
	return linuxSocket{socket}, nil
}

// Adopt implements Sockets.
func (s linuxSockets) Adopt(p backing.Protocol, at netip.AddrPort, fd int) Socket {
	return linuxSocket{backing.Adopt(p, at, s.Filters, fd)}
}

// linuxSocket implements Socket.
type linuxSocket struct{ *backing.Socket }

// Listener implements Socket.
func (s linuxSocket) Listener(backlog int) (Acceptor, error) {
	l, err := s.Socket.Listener(backlog)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Conn implements Socket.
func (s linuxSocket) Conn() (Datagrams, error) {
	c, err := s.Socket.Conn()
	if err != nil {
		return nil, err
	}
	return linuxDatagrams{c}, nil
}

// linuxDatagrams implements Datagrams.
type linuxDatagrams struct{ *net.UDPConn }

// Receive implements Datagrams.
func (c linuxDatagrams) Receive(b, oob []byte) (n, oobn int, from netip.AddrPort, err error) {
	n, oobn, _, from, err = c.ReadMsgUDPAddrPort(b, oob)
	return n, oobn, from, err
}

// Send implements Datagrams.
func (c linuxDatagrams) Send(b, oob []byte, to netip.AddrPort) error {
	_, _, err := c.WriteMsgUDPAddrPort(b, oob, to)
	return err
}
