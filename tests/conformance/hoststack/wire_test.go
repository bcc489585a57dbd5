//go:build linux

package hoststack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	simkernel "github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// What a host makes of single frames is compared on a wire whose other end is the test: it writes
// each byte of what the host receives, and sees each frame that the host sends.

// Addresses on the wire. The test answers for all of the two subnets but the host's.
var (
	wireHost4, wirePeer4 = netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.100")
	wireHost6, wirePeer6 = netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd77::100")
	wireAll4             = netip.MustParseAddr("10.77.0.255")

	wirePeerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	everybody   = net.HardwareAddr{255, 255, 255, 255, 255, 255}
)

// wired is a host on such a wire. Notes are taken of what it does.
type wired struct {
	*testing.T
	sockets
	notes
	mac   net.HardwareAddr // the host's
	index int              // of the interface, as control messages name it
	write func(frame []byte)
	ports uint16 // of the peer's that have been used
	// probes holds connected sockets of a stack beside the kernel, of IPv4 and IPv6; see answers
	probes []udpConn

	mu     sync.Mutex
	frames [][]byte // sent by the host, but for ARP and neighbour discovery; guarded by mu
	told   int      // by the host which its hardware address is; guarded by mu
	more   chan struct{}
}

// wiredKernel returns a kernel on such a wire.
func wiredKernel(t *testing.T) *wired {
	host, far := cabledHost(t)
	w := newWired(t, inside{host, kernel{}})
	w.onCable(far)
	return w
}

// wiredPackets returns a stack with a MAC of its own, on packet sockets.
func wiredPackets(t *testing.T) *wired {
	host, far := laidCable(t, cable)
	connect(t, host, far)
	mac := net.HardwareAddr{2, 0xda, 0x7a, 0, 0, 2}
	w := newWired(t, openInside(t, host, stack.Config{
		NIC:    dv.NIC{Device: cable, MAC: mac, RxQueues: 1, TxQueues: 1},
		Uplink: stack.UplinkOptions{Backend: stack.BackendPacket},
		Addresses: []netip.Prefix{netip.PrefixFrom(wireHost4, 24),
			netip.PrefixFrom(wireHost6, 64)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1, NoAnnounce: true}}))
	w.onCable(far)
	w.mac = mac
	return w
}

// wiredHost returns a stack on the kernel's addresses, on packet sockets.
func wiredHost(t *testing.T) *wired {
	host, far := cabledHost(t)
	w := newWired(t, inside{host, kernel{}}.onHost(t, dv.NIC{Device: cable}, stack.BackendAuto, 0))
	w.onCable(far)
	w.besideKernel()
	return w
}

// wiredHostRings returns a stack on the kernel's addresses, on the rings of a software ConnectX
// whose netdev is the kernel's.
func wiredHostRings(t *testing.T) *wired {
	need.TUN(t)
	const port = "port0"
	host, far := laidCable(t, port)
	cfg, err := cardOf(t, host, port, 2)
	if err != nil {
		t.Fatal(err)
	}
	wireAddresses(t, host, far)
	w := newWired(t, inside{host, kernel{}}.onHost(t, cfg.NIC, stack.BackendAuto, 0))
	w.onCable(far)
	w.besideKernel()
	return w
}

// laidCable makes two network namespaces: the host's, whose end of the cable has a name, and that
// of the test.
func laidCable(t *testing.T, name string) (host, far *lab.Net) {
	need.NetNS(t)
	host, far = newHost(t, "host"), newHost(t, "far")
	if err := lab.Cable(host, name, far, cable); err != nil {
		t.Fatal(err)
	}
	return host, far
}

// cabledHost returns laidCable with the host's addresses.
func cabledHost(t *testing.T) (host, far *lab.Net) {
	host, far = laidCable(t, cable)
	wireAddresses(t, host, far)
	return host, far
}

// wireAddresses gives the host its addresses, and has its kernel answer as often as it is asked.
func wireAddresses(t *testing.T, host, far *lab.Net) {
	connect(t, host, far)
	address(t, host, netip.PrefixFrom(wireHost4, 24), netip.PrefixFrom(wireHost6, 64))
	if err := host.Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/icmp/ratelimit", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0))
	}); err != nil {
		t.Fatal(err)
	}
}

// openInside opens a stack in a namespace.
func openInside(t testing.TB, n *lab.Net, cfg stack.Config) inside {
	t.Helper()
	i := inside{n: n}
	st, err := enter(i, func() (*stack.Stack, error) {
		return stack.Open(context.Background(), cfg)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	i.sockets = netstack{st}
	return i
}

// onCable puts the test at the far end of the host's cable.
func (w *wired) onCable(far *lab.Net) {
	t, ethtool := w.T, need.Tool(w.T, "ethtool")
	host := w.sockets.(inside).n
	var port *lab.Port
	if err := far.Do(func() (err error) {
		port, err = lab.OpenPort(cable)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := host.Do(func() error {
		link, err := netlink.LinkByName(cable)
		if err != nil {
			return err
		}
		w.mac, w.index = link.Attrs().HardwareAddr, link.Attrs().Index
		// The test sees frames as large as they are on a wire: those of the kernel's sockets, and
		// datagrams that packet sockets leave to the kernel to cut up.
		return errors.Join(netlink.LinkSetGSOMaxSegs(link, 1),
			exec.Command(ethtool, "-K", cable, "tx-udp-segmentation", "off").Run())
	}); err != nil {
		t.Fatal(err)
	}
	w.write = func(f []byte) {
		if err := port.Send(f); err != nil {
			t.Error(err)
		}
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 1<<16); ; {
			f, err := port.Recv(buf, time.Time{})
			if err != nil {
				return
			}
			w.sees(slices.Clone(f))
		}
	})
	t.Cleanup(func() {
		port.Close()
		reader.Wait()
	})
}

// besideKernel opens the sockets by which answers knows how far the stack is.
func (w *wired) besideKernel() {
	for _, peer := range []netip.Addr{wirePeer4, wirePeer6} {
		w.probes = append(w.probes, w.dialUDP(peer))
	}
}

// wiredStack is a stack on a software ConnectX, whose cable ends at the test.
func wiredStack(t *testing.T) *wired {
	near, far := wire.Pair()
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	if err := nic.ConnectWire(near); err != nil {
		t.Fatal(err)
	}
	w := newWired(t, nil)
	w.mac, w.index = net.HardwareAddr{2, 0xda, 0x7a, 0, 0, 2}, 1
	w.write = func(f []byte) { far.Send([]frame.Frame{{Data: f}}) }
	if err := far.Start(func(fs []frame.Frame) {
		for _, f := range fs {
			w.sees(slices.Clone(f.Data))
		}
	}); err != nil {
		t.Fatal(err)
	}
	st, err := stack.Open(context.Background(), stack.Config{
		NIC: dv.NIC{Model: dv.Model{
			Kernel: simkernel.Opener(nic),
			Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()},
		}, MAC: w.mac, RxQueues: 1, TxQueues: 1}, // [wired.answers] relies on the order of frames
		Addresses: []netip.Prefix{netip.PrefixFrom(wireHost4, 24),
			netip.PrefixFrom(wireHost6, 64)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1, NoAnnounce: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	w.sockets = netstack{st}
	return w
}

func newWired(t *testing.T, s sockets) *wired {
	return &wired{T: t, sockets: s, more: make(chan struct{}, 1),
		notes: notes{world: &world{roles: roleless{}}, names: map[string]string{}}}
}

type roleless struct{}

func (roleless) Replace(s string) string { return s }

// sees takes a frame that the host has sent, and answers for the other addresses.
func (w *wired) sees(f []byte) {
	switch etherType := binary.BigEndian.Uint16(f[12:]); {
	case etherType == 0x0806:
		w.noteTold(f[21] == 2)
		if f[21] == 1 && string(f[28:32]) != string(f[38:42]) {
			a := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, wirePeerMAC...)
			a = append(append(append(a, f[38:42]...), f[22:28]...), f[28:32]...)
			go w.send(w.mac, 0x0806, a)
		}
		return
	case etherType == 0x86dd && f[20] == 58 && f[54] >= 130 && f[54] <= 143,
		etherType == 0x86dd && f[20] == 0:
		w.noteTold(f[54] == 136)
		if f[54] == 135 && string(f[22:38]) != string(make([]byte, 16)) {
			body := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, f[62:78]...)
			body = append(append(body, 2, 1), wirePeerMAC...)
			from, _ := netip.AddrFromSlice(f[62:78])
			to, _ := netip.AddrFromSlice(f[22:38])
			go w.send(w.mac, 0x86dd, packet(from, to, 58, body, option{hops: 255}))
		}
		return
	}
	w.mu.Lock()
	w.frames = append(w.frames, f)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// noteTold counts that the host has said which its hardware address is.
func (w *wired) noteTold(is bool) {
	if is {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told++
	}
}

// send sends one frame to the host.
func (w *wired) send(to net.HardwareAddr, etherType uint16, body []byte) {
	w.sendFrom(wirePeerMAC, to, etherType, body)
}

func (w *wired) sendFrom(from, to net.HardwareAddr, etherType uint16, body []byte) {
	f := append(append(slices.Clone(to), from...), byte(etherType>>8), byte(etherType))
	f = append(f, body...)
	for len(f) < 60 {
		f = append(f, 0)
	}
	w.write(f)
}

// deliver sends a packet to the host's MAC.
func (w *wired) deliver(ip []byte) { w.deliverTo(w.mac, ip) }

func (w *wired) deliverTo(mac net.HardwareAddr, ip []byte) {
	etherType := uint16(0x0800)
	if ip[0]>>4 == 6 {
		etherType = 0x86dd
	}
	w.send(mac, etherType, ip)
}

// next waits for a packet that the host sends and that fits, and forgets those before it.
func (w *wired) next(what string, fits func(ip []byte) bool) []byte {
	w.Helper()
	return unpadded(w.nextFrame(what, fits)[14:])
}

// nextTo does what next does, for where the packet is sent to.
func (w *wired) nextTo(fits func(ip []byte) bool) net.HardwareAddr {
	w.Helper()
	return net.HardwareAddr(w.nextFrame("a packet", fits)[:6])
}

func (w *wired) nextFrame(what string, fits func(ip []byte) bool) []byte {
	w.Helper()
	for late := time.After(patience); ; {
		w.mu.Lock()
		for len(w.frames) > 0 {
			f := w.frames[0]
			w.frames = w.frames[1:]
			if fits(unpadded(f[14:])) {
				w.mu.Unlock()
				return f
			}
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-late:
			w.Fatalf("%s was not sent", what)
		}
	}
}

// answers lists what the host sends until it answers an echo request of the test's. That of a stack
// beside the kernel is answered by the kernel: what the stack has sent is listed too, until it has
// worked off what came before.
func (w *wired) answers() (all [][]byte) {
	w.Helper()
	const id = 0x7e57
	echo := []byte{8, 0, 0, 0, id >> 8, id & 0xff, 0, 1}
	w.deliver(packet(wirePeer4, wireHost4, 1, echo, option{}))
	all = w.before("the answer to an echo request", func(ip []byte) bool {
		return ip[0]>>4 == 4 && ip[9] == 1 && ip[20] == 0 && binary.BigEndian.Uint16(ip[24:]) == id
	})
	if len(w.probes) > 0 {
		all = append(all, w.probed(w.probes[0])...)
	}
	return all
}

// before lists what the host sends before a packet that fits.
func (w *wired) before(what string, fits func(ip []byte) bool) (all [][]byte) {
	w.Helper()
	w.next(what, func(ip []byte) bool {
		if fits(ip) {
			return true
		}
		all = append(all, ip)
		return false
	})
	return all
}

// probed waits until a stack has worked off what came before by packet sockets, which an error of
// ICMP takes, and by rings, which a datagram takes. It lists what the host sends until then.
func (w *wired) probed(c udpConn) (all [][]byte) {
	w.Helper()
	w.must(c.SetDeadline(soon()))
	host := c.LocalAddr().(*net.UDPAddr).AddrPort()
	peer := c.RemoteAddr().(*net.UDPAddr).AddrPort()
	to, from := host.Addr().Unmap(), peer.Addr().Unmap()
	about := packet(to, from, 17, datagram(host.Port(), peer.Port(), ""), option{})
	if to.Is4() {
		w.deliver(quoting(about, 3, 3, 0))
	} else {
		w.deliver(quoting(about, 1, 4, 0))
	}
	buf := make([]byte, 64)
	if n, err := c.Read(buf); !errors.Is(err, syscall.ECONNREFUSED) {
		w.Fatalf("the probe's error of ICMP: %q, %v", buf[:n], err)
	}
	w.deliver(packet(from, to, 17, datagram(peer.Port(), host.Port(), "probe"), option{}))
	if n, err := c.Read(buf); string(buf[:n]) != "probe" {
		w.Fatalf("the probe's datagram: %q, %v", buf[:n], err)
	}
	w.write1(c, "probe")
	return w.before("the probe", is(17, peer.Port()))
}

// option is what packets may have that most have not.
type option struct {
	hops       byte
	v4options  []byte
	extensions []byte // of IPv6; first is what they begin with
	first      byte
	fragment   uint16 // flags and offset of IPv4
}

// packet is an IP packet. The checksum in body, of ICMP, ICMPv6, TCP or UDP, is computed.
func packet(from, to netip.Addr, protocol byte, body []byte, o option) (b []byte) {
	body = slices.Clone(body)
	hops := max(o.hops, 64)
	sumIn(from, to, protocol, body)
	if from.Is4() {
		n := 20 + len(o.v4options)
		b = []byte{byte(0x40 | n/4), 0, byte((n + len(body)) >> 8), byte(n + len(body)), 0, 1,
			byte(o.fragment >> 8), byte(o.fragment), hops, protocol, 0, 0}
		b = append(append(append(b, from.AsSlice()...), to.AsSlice()...), o.v4options...)
		binary.BigEndian.PutUint16(b[10:], sum(b, 0))
		return append(b, body...)
	}
	n := len(o.extensions) + len(body)
	if len(o.extensions) > 0 {
		protocol = o.first
	}
	b = []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), protocol, hops}
	b = append(append(append(b, from.AsSlice()...), to.AsSlice()...), o.extensions...)
	return append(b, body...)
}

// sumIn computes the checksum of a message.
func sumIn(from, to netip.Addr, protocol byte, body []byte) {
	at := map[byte]int{1: 2, 58: 2, 6: 16, 17: 6}[protocol]
	if at == 0 || at+2 > len(body) {
		return
	}
	pseudo := uint32(0)
	if protocol != 1 {
		for _, b := range [][]byte{from.AsSlice(), to.AsSlice()} {
			pseudo += uint32(^sum(b, 0))
		}
		pseudo += uint32(protocol) + uint32(len(body))
	}
	binary.BigEndian.PutUint16(body[at:], 0)
	binary.BigEndian.PutUint16(body[at:], sum(body, pseudo))
}

func sum(b []byte, s uint32) uint16 {
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// datagram is a UDP datagram without its checksum.
func datagram(from, to uint16, payload string) []byte {
	n := 8 + len(payload)
	b := []byte{byte(from >> 8), byte(from), byte(to >> 8), byte(to), byte(n >> 8), byte(n), 0, 0}
	return append(b, payload...)
}

// segment is a TCP segment without its checksum.
func segment(from, to uint16, seq, ack uint32, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13], b[14] = 0x50, flags, 0xff
	return b
}

// quoting is an error of ICMP or ICMPv6 about a packet, sent by the peer.
func quoting(about []byte, kind, code byte, value uint32) []byte {
	m := binary.BigEndian.AppendUint32([]byte{kind, code, 0, 0}, value)
	m = append(m, about[:min(len(about), 500)]...)
	if about[0]>>4 == 4 {
		from, _ := netip.AddrFromSlice(about[12:16])
		return packet(wirePeer4, from, 1, m, option{})
	}
	from, _ := netip.AddrFromSlice(about[8:24])
	return packet(wirePeer6, from, 58, m, option{})
}

// protocolOf is the transport protocol of a packet, and where its header is.
func protocolOf(ip []byte) (protocol byte, at int) {
	if ip[0]>>4 == 4 {
		return ip[9], int(ip[0]&15) * 4
	}
	return ip[6], 40
}

// is returns a test for packets of a protocol to a port.
func is(protocol byte, port uint16) func([]byte) bool {
	return func(ip []byte) bool {
		p, at := protocolOf(ip)
		return p == protocol && binary.BigEndian.Uint16(ip[at+2:]) == port
	}
}

// summary says of a packet what programs on the network would notice.
func summary(ip []byte) string {
	p, at := protocolOf(ip)
	switch p {
	case 1:
		return fmt.Sprintf("ICMP %d/%d", ip[at], ip[at+1])
	case 58:
		return fmt.Sprintf("ICMPv6 %d/%d pointer %d%s", ip[at], ip[at+1],
			binary.BigEndian.Uint32(ip[at+4:]), wrongSum(ip))
	case 6:
		return fmt.Sprintf("TCP flags %#x", ip[at+13])
	}
	return fmt.Sprintf("protocol %d", p)
}

// wrongSum says so if the checksum of an ICMPv6 packet is wrong.
func wrongSum(ip []byte) string {
	from, _ := netip.AddrFromSlice(ip[8:24])
	to, _ := netip.AddrFromSlice(ip[24:40])
	body := slices.Clone(ip[40:])
	sumIn(from, to, 58, body)
	if body[2] != ip[42] || body[3] != ip[43] {
		return " with a wrong checksum"
	}
	return ""
}

// errno is the name of an error's number, or what else it is.
func errno(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "no error"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	if t, ok := err.(interface{ Timeout() bool }); ok && t.Timeout() {
		return "timeout"
	}
	return err.Error()
}
