package xdp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

const ifname = "eth0"

var (
	ourMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0x0a}
	netdev   = net.HardwareAddr{2, 0, 0, 0, 0, 0x01}
	peerMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x0b}
	ourIP    = netip.MustParsePrefix("192.0.2.10/24")
	peerIP   = netip.MustParsePrefix("192.0.2.1/24")
	ourIPv6  = netip.MustParsePrefix("2001:db8::10/64")
	peerIPv6 = netip.MustParsePrefix("2001:db8::1/64")
)

// world represents a veth pair without offloads between two namespaces: ours, where ports are
// opened, and a peer's, whose kernel knows our MAC by our addresses.
type world struct{ ours, peer *lab.Net }

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldCabled(t, lab.Cable)
}

// newWorldCabled makes a world whose veth pair is made by a function like lab.Cable.
func newWorldCabled(t testing.TB, cable func(a *lab.Net, aName string, b *lab.Net,
	bName string) error) *world {
	t.Helper()
	need.NetNS(t)
	need.Root(t)
	w := &world{}
	for name, n := range map[string]**lab.Net{"ours": &w.ours, "peer": &w.peer} {
		made, err := lab.New(name)
		must(t, err)
		t.Cleanup(func() { must(t, made.Close()) })
		*n = made
	}
	must(t, cable(w.ours, ifname, w.peer, ifname))
	onwire.Make(t, ifname, w.ours, w.peer)
	must(t, w.ours.Do(func() error { return lab.Up(ifname, lab.Setup{MAC: netdev}) }))
	must(t, w.peer.Do(func() error {
		if err := lab.Up(ifname, lab.Setup{MAC: peerMAC,
			Addresses: []netip.Prefix{peerIP, peerIPv6}}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		for _, ip := range []netip.Prefix{ourIP, ourIPv6} {
			if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index,
				State: netlink.NUD_PERMANENT, IP: ip.Addr().AsSlice(),
				HardwareAddr: ourMAC}); err != nil {
				return err
			}
		}
		return nil
	}))
	return w
}

// kinds lists the ways to be on the interface, all of which keep the same promises.
var kinds = []string{"packet sockets", "AF_XDP", "AF_XDP both ways"}

// eachKind runs a test over each.
func eachKind(t *testing.T, test func(t *testing.T, w *world, open opener)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			test(t, w, func(cfg packet.Config) packet.Netdev {
				if kind == kinds[0] {
					var p *packet.Port
					must(t, w.ours.Do(func() (err error) {
						p, err = packet.Open(w.filled(cfg))
						return err
					}))
					return w.ready(t, p)
				}
				options := Options{}
				if kind == kinds[2] {
					options.Send = SendRings
				}
				return w.open(t, Config{Config: cfg, Options: options})
			})
		})
	}
}

// opener opens a port in our namespace.
type opener func(packet.Config) packet.Netdev

func (w *world) filled(cfg packet.Config) packet.Config {
	cfg.Device = ifname
	if cfg.MAC == nil && !cfg.Host {
		cfg.MAC = ourMAC
	}
	return cfg
}

// open opens a port of this package's.
func (w *world) open(t testing.TB, cfg Config) *Port {
	t.Helper()
	p, err := w.try(cfg)
	must(t, err)
	w.ready(t, p)
	return p
}

func (w *world) try(cfg Config) (p *Port, err error) {
	cfg.Config = w.filled(cfg.Config)
	err = w.ours.Do(func() (err error) {
		p, err = Open(cfg)
		return err
	})
	return p, err
}

// ready waits for the carrier, without which the kernel drops what is sent.
func (w *world) ready(t testing.TB, p packet.Netdev) packet.Netdev {
	t.Helper()
	t.Cleanup(func() { must(t, p.Close()) })
	awaitLink(t, p, true)
	return p
}

func awaitLink(t testing.TB, p packet.Netdev, up bool) {
	t.Helper()
	for deadline := time.After(20 * time.Second); p.LinkUp() != up; {
		select {
		case <-p.LinkChanged():
		case <-deadline:
			t.Fatalf("LinkUp %v", !up)
		}
	}
}

// rawSocket opens a plain packet socket of the peer, which sends any frame and sees all.
func (w *world) rawSocket(t testing.TB) (fd int) {
	t.Helper()
	must(t, w.peer.Do(func() error {
		ifc, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		timeout := unix.Timeval{Sec: 20}
		all := binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)
		for _, err := range []error{
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(all),
				Ifindex: ifc.Index}),
		} {
			if err != nil {
				return err
			}
		}
		return nil
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// nextFrom returns the next frame that a raw socket sees from a MAC address.
func nextFrom(t testing.TB, fd int, src net.HardwareAddr) []byte {
	t.Helper()
	b := make([]byte, 70000)
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		must(t, err)
		if n >= ethLen && net.HardwareAddr(b[6:12]).String() == src.String() {
			return b[:n]
		}
	}
}

// setLink changes our end.
func (w *world) setLink(t testing.TB, change func(netlink.Link) error) {
	t.Helper()
	must(t, w.ours.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		return change(link)
	}))
}

// queues returns all receive queues of a port.
func queues(p packet.Interface) (all []packet.Receiver) {
	for i := range p.NumQueues() {
		all = append(all, p.Rx(i))
	}
	if j, ok := p.(packet.Joined); ok {
		all = append(all, queues(j.Beside())...)
	}
	return all
}

// reception holds what all queues of a port have received, in order of each.
type reception struct {
	frames chan packet.Frame
	ended  chan error
	queues int
	counts []atomic.Uint64 // of frames by each queue, without chatter
}

// receiveAll runs a goroutine for each queue until the port is over.
func receiveAll(p packet.Interface) *reception {
	all := queues(p)
	r := &reception{frames: make(chan packet.Frame, 10000), ended: make(chan error, len(all)),
		queues: len(all), counts: make([]atomic.Uint64, len(all))}
	for i, q := range all {
		go func() {
			var batch [8]packet.Frame
			for {
				n := q.Receive(batch[:])
				for _, f := range batch[:n] {
					if isChatter(f.Data) {
						continue
					}
					f.Data = append([]byte(nil), f.Data...)
					r.counts[i].Add(1)
					r.frames <- f
				}
				if n > 0 {
					continue
				}
				if err := q.Wait(); err != nil {
					r.ended <- err
					return
				}
			}
		}()
	}
	return r
}

// isChatter reports whether a frame is what kernels tell each other unasked: neighbours, multicast
// listeners.
func isChatter(f []byte) bool {
	const arp, hopByHop, icmpv6 = 0x0806, 0, 58
	kind := binary.BigEndian.Uint16(f[atType:])
	return kind == arp ||
		kind == typeIPv6 && (f[atProtocol6] == hopByHop || f[atProtocol6] == icmpv6)
}

// next returns the next frame.
func (r *reception) next(t testing.TB) packet.Frame {
	t.Helper()
	select {
	case f := <-r.frames:
		return f
	case <-time.After(20 * time.Second):
		t.Fatal("no frame came")
		panic("unreachable")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// experimental names an EtherType for tests (IEEE 802 local experimental).
const experimental = 0x88b5

// ipFrame returns a frame with a packet of the peer's to us.
func ipFrame(dst net.HardwareAddr, from, to netip.Addr, proto byte, payload []byte) []byte {
	kind := uint16(typeIPv4)
	if from.Is6() {
		kind = typeIPv6
	}
	return eth.Ethernet(dst, peerMAC, kind, eth.IP(from, to, proto, payload))
}
