//go:build linux

package links

import (
	"io"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/link/packetsocket"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	"gvisor.dev/gvisor/pkg/tcpip/link/sharedmem"
	"gvisor.dev/gvisor/pkg/tcpip/link/sniffer"
	"gvisor.dev/gvisor/pkg/tcpip/link/veth"
	"gvisor.dev/gvisor/pkg/tcpip/link/waitable"
	"gvisor.dev/gvisor/pkg/tcpip/link/xdp"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// The two ends of a cable.
const (
	macA = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x0a")
	macB = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x0b")
	mtu  = 1500
)

// cable opens two links that are connected.
type cable struct {
	name string
	open func(t *testing.T) (a, b gstack.LinkEndpoint)
}

func cables() []cable {
	return []cable{
		{"channel", openChannel},
		{"veth", openVeth},
		{"sniffer on veth", func(t *testing.T) (a, b gstack.LinkEndpoint) {
			a, b = openVeth(t)
			return sniffed(t, a), sniffed(t, b)
		}},
		{"packetsocket on veth", func(t *testing.T) (a, b gstack.LinkEndpoint) {
			a, b = openVeth(t)
			return packetsocket.New(a), packetsocket.New(b)
		}},
		{"waitable on veth", func(t *testing.T) (a, b gstack.LinkEndpoint) {
			a, b = openVeth(t)
			return waitable.New(a), waitable.New(b)
		}},
		{"pipe", openPipe},
		{"ethernet on pipe", func(t *testing.T) (a, b gstack.LinkEndpoint) {
			a, b = openPipe(t)
			return ethernet.New(a), ethernet.New(b)
		}},
		{"fdbased, a socket pair", openSockets},
		{"fdbased, packet sockets, recvmmsg", func(t *testing.T) (a,
			b gstack.LinkEndpoint) {
			return openPackets(t, fdbased.RecvMMsg)
		}},
		{"fdbased, packet sockets, mmap", func(t *testing.T) (a,
			b gstack.LinkEndpoint) {
			return openPackets(t, fdbased.PacketMMap)
		}},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openVeth(*testing.T) (a, b gstack.LinkEndpoint) {
	left, right := veth.NewPair(mtu, veth.DefaultBacklogSize)
	return left, right
}

func openPipe(*testing.T) (a, b gstack.LinkEndpoint) {
	left, right := pipe.New(macA, macB, mtu)
	return left, right
}

// sniffed writes the packets of a link as pcap and discards the output.
func sniffed(t *testing.T, link gstack.LinkEndpoint) gstack.LinkEndpoint {
	t.Helper()
	s, err := sniffer.NewWithWriter(link, io.Discard, 128)
	must(t, err)
	return s
}

// openChannel carries packets between two channel endpoints until the test ends.
func openChannel(t *testing.T) (a, b gstack.LinkEndpoint) {
	left, right := channel.New(512, mtu, macA), channel.New(512, mtu, macB)
	carry := func(from, to *channel.Endpoint) {
		for {
			pkt := from.ReadContext(t.Context())
			if pkt == nil {
				return
			}
			copied := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: pkt.ToBuffer()})
			to.InjectInbound(pkt.NetworkProtocolNumber, copied)
			copied.DecRef()
			pkt.DecRef()
		}
	}
	go carry(left, right)
	go carry(right, left)
	return left, right
}

func openSockets(t *testing.T) (a, b gstack.LinkEndpoint) {
	fds, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	return onFD(t, fds[0], macA, fdbased.Readv), onFD(t, fds[1], macB, fdbased.Readv)
}

func onFD(t *testing.T, fd int, mac tcpip.LinkAddress,
	mode fdbased.PacketDispatchMode) gstack.LinkEndpoint {
	t.Helper()
	t.Cleanup(func() { unix.Close(fd) })
	link, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: mtu,
		EthernetHeader: true, Address: mac,
		PacketDispatchMode: mode, RXChecksumOffload: true})
	must(t, err)
	return link
}

// withPorts makes a veth pair in a namespace and runs open for each end there.
func withPorts(t *testing.T, open func(index int, mac tcpip.LinkAddress)) {
	t.Helper()
	need.NetNS(t)
	n, err := lab.New("cable")
	must(t, err)
	t.Cleanup(func() { n.Close() })
	must(t, lab.Cable(n, "a", n, "b"))
	must(t, n.Do(func() error {
		for _, port := range []string{"a", "b"} {
			if err := lab.Up(port, lab.Setup{}); err != nil {
				return err
			}
		}
		for port, mac := range map[string]tcpip.LinkAddress{"a": macA, "b": macB} {
			p, err := lab.OpenPort(port) // makes the interface promiscuous
			if err != nil {
				return err
			}
			t.Cleanup(func() { p.Close() })
			open(interfaceIndex(t, port), mac)
		}
		return nil
	}))
}

func openPackets(t *testing.T, mode fdbased.PacketDispatchMode) (a, b gstack.LinkEndpoint) {
	withPorts(t, func(index int, mac tcpip.LinkAddress) {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocolAll))
		must(t, err)
		must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocolAll, Ifindex: index}))
		if link := onFD(t, fd, mac, mode); mac == macA {
			a = link
		} else {
			b = link
		}
	})
	return a, b
}

// openShared opens the two ends of a shared memory link.
func openShared(t *testing.T) (client, server gstack.LinkEndpoint) {
	t.Helper()
	q, err := sharedmem.NewQueuePair(sharedmem.QueueOptions{})
	need.That(t, "shm", err)
	t.Cleanup(q.Close)
	opts := sharedmem.Options{MTU: mtu, BufferSize: sharedmem.DefaultBufferSize, LinkAddress: macA,
		TX: q.TXQueueConfig(), RX: q.RXQueueConfig(), PeerFD: -1, RXChecksumOffload: true}
	client, err = sharedmem.New(opts)
	must(t, err)
	opts.LinkAddress = macB
	server, err = sharedmem.NewServerEndpoint(opts)
	must(t, err)
	return client, server
}

// protocolAll is ETH_P_ALL in network byte order.
const protocolAll = unix.ETH_P_ALL << 8

// openXDP opens one AF_XDP socket, without a program that redirects frames to it.
func openXDP(t *testing.T) (link gstack.LinkEndpoint) {
	withPorts(t, func(index int, mac tcpip.LinkAddress) {
		if mac != macA {
			return
		}
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		need.That(t, "xdp", err)
		t.Cleanup(func() { unix.Close(fd) })
		link, err = xdp.New(&xdp.Options{FD: fd, Address: mac, InterfaceIndex: index, Bind: true})
		need.That(t, "xdp", err)
	})
	return link
}

// The addresses of the two ends.
func addresses(last byte) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, last}), 24)}
}
