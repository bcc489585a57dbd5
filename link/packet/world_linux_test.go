package packet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
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

// world is a veth pair between two namespaces: ours, where ports are opened, and a peer's, whose
// kernel knows our MAC by our addresses.
type world struct {
	ours, peer *lab.Net
}

func newWorld(t testing.TB) *world {
	t.Helper()
	need.NetNS(t)
	w := &world{}
	for name, n := range map[string]**lab.Net{"ours": &w.ours, "peer": &w.peer} {
		made, err := lab.New(name)
		must(t, err)
		t.Cleanup(func() { must(t, made.Close()) })
		*n = made
	}
	must(t, lab.Cable(w.ours, ifname, w.peer, ifname))
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
	for _, n := range []*lab.Net{w.ours, w.peer} {
		must(t, openIn(t, n, Config{Device: ifname}).Close())
	}
	return w
}

// open opens a port in our namespace, on MAC ourMAC unless cfg has one.
func (w *world) open(t testing.TB, cfg Config) *Port {
	t.Helper()
	if cfg.Device == "" {
		cfg.Device = ifname
	}
	if cfg.MAC == nil {
		cfg.MAC = ourMAC
	}
	return openIn(t, w.ours, cfg)
}

// openIn opens a port and waits for its carrier, without which the kernel drops what is sent.
func openIn(t testing.TB, n *lab.Net, cfg Config) (p *Port) {
	t.Helper()
	must(t, n.Do(func() (err error) {
		p, err = Open(cfg)
		return err
	}))
	t.Cleanup(func() { must(t, p.Close()) })
	awaitLink(t, p, true)
	return p
}

// awaitLink waits for the link to be up, or down.
func awaitLink(t testing.TB, p *Port, up bool) {
	t.Helper()
	for deadline := time.After(20 * time.Second); p.LinkUp() != up; {
		select {
		case <-p.LinkChanged():
		case <-deadline:
			t.Fatalf("LinkUp %v", !up)
		}
	}
}

// rawSocket is a plain packet socket of the peer, which sends any frame and sees all.
func (w *world) rawSocket(t testing.TB, vnet int) (fd int) {
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
		for _, err := range []error{
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, vnet),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			bindTo(fd, ifc.Index),
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

// setLink brings our end up or down.
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

// receive returns copies of the next n frames of a queue that are no announcements.
func receive(t testing.TB, q Receiver, n int) (frames []Frame) {
	t.Helper()
	stop := time.AfterFunc(20*time.Second, q.Wake)
	defer stop.Stop()
	var batch [8]Frame
	for deadline := time.Now().Add(20 * time.Second); len(frames) < n; {
		got := q.Receive(batch[:])
		for _, f := range batch[:got] {
			if isAnnouncement(f.Data) {
				continue
			}
			f.Data = append([]byte(nil), f.Data...)
			frames = append(frames, f)
		}
		if got > 0 {
			continue
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d frames of %d came: %+v", len(frames), n,
				q.(*RxQueue).countersNow())
		}
		must(t, q.Wait())
	}
	return frames
}

// openWithoutGroups opens a port that has no groups, so that what the peer's kernel announces does
// not count, and returns its counters.
func (w *world) openWithoutGroups(t testing.TB) (*Port, RxStats) {
	t.Helper()
	p := w.open(t, Config{})
	must(t, p.SetGroups(nil))
	var batch [8]Frame
	for p.Rx(0).Receive(batch[:]) > 0 {
		continue
	}
	return p, p.Stats().Rx[0]
}

// isAnnouncement reports whether a frame is what a kernel with IPv6 tells groups unasked, some
// seconds after it has come up: its groups (RFC 3810), or that it looks for routers (RFC 4861).
func isAnnouncement(f []byte) bool {
	const routerSolicitation = 133
	return len(f) > ethLen+ipv6Len && f[0] == 0x33 && f[1] == 0x33 &&
		binary.BigEndian.Uint16(f[12:]) == typeIPv6 && (f[ethLen+6] == extHopByHop ||
		f[ethLen+6] == protoICMPv6 && f[ethLen+ipv6Len] == routerSolicitation)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
