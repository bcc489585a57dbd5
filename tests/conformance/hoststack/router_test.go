//go:build linux

package hoststack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// advertisement holds what a router says of the link and of itself (RFC 4861 section 4.2).
type advertisement struct {
	router             int // 1 or 2
	hopLimit           byte
	preference         byte // RFC 4191 section 2.1, 2 bits
	lifetime           uint16
	reachable, retrans uint32 // milliseconds
}

var advertisements = []advertisement{
	{1, 33, 0, 1800, 20000, 500},
	{1, 0, 0, 1800, 0, 0},               // says nothing
	{2, 44, 0, 1800, 90000, 2000},       // another one, as good
	{2, 44, 1, 1800, 90000, 2000},       // preferred
	{1, 33, 1, 1800, 20000, 500},        // both are
	{2, 44, 3, 1800, 1, 1},              // low; times below what is taken
	{1, 33, 3, 1800, 0, 0},              // both are
	{2, 44, 2, 1800, 0xffffffff, 86400}, // reserved: medium
	{1, 33, 1, 1800, 30000, 1000},
	{1, 0, 1, 0, 0, 0},   // withdraws
	{2, 255, 0, 0, 0, 0}, // so does the other
	{2, 0, 0, 1800, 0, 0},
	{1, 1, 1, 1800, 0, 0},
}

// seen describes how a host sends after an advertisement: with which hop limits on the link and
// beyond, by which router, and the times of neighbour discovery in milliseconds.
type seen struct {
	onLink, beyond     byte
	router             int
	reachable, retrans int64
}

func (s seen) String() string {
	return fmt.Sprintf("hop limit %d on the link, %d beyond by router %d; reachable %d ms, "+
		"retransmission %d ms", s.onLink, s.beyond, s.router, s.reachable, s.retrans)
}

// TestRouterAdvertisements compares what a kernel and a stack make of routers' advertisements.
func TestRouterAdvertisements(t *testing.T) {
	need.Long(t, "13 advertisements to a kernel and to a stack, 4 s")
	need.NetNS(t)
	want, got := advertised(t, advertisedKernel), advertised(t, advertisedStack)
	for i, a := range advertisements {
		w, g := want[i], got[i]
		if w.router != a.router { // the kernel has a hop limit for each router
			w.beyond, g.beyond = 0, 0
		}
		if w.onLink != g.onLink || w.beyond != g.beyond || w.router != g.router ||
			!sameJiffy(w.reachable, g.reachable) || !sameJiffy(w.retrans, g.retrans) {
			t.Errorf("advertisement %d, %+v:\n\tstack  %v\n\tkernel %v", i, a, got[i],
				want[i])
		}
	}
}

// sameJiffy says whether two times in milliseconds are the same to a kernel, whose unit is 1 to 4.
func sameJiffy(a, b int64) bool { return max(a, b)-min(a, b) <= 4 }

// advertisedHost gives access to a host that routers advertise to.
type advertisedHost struct {
	inside
	routed func(netip.Prefix) bool // it has the route
	times  func() (reachable, retrans int64)
}

// advertised opens a host, sends the advertisements one by one and returns what each makes it do.
func advertised(t *testing.T, open func(*testing.T, *lab.Net) advertisedHost) (all []seen) {
	t.Helper()
	n, peer := newHost(t, "host"), newHost(t, "routers")
	must(t, lab.Cable(n, cable, peer, cable))
	connect(t, n, peer)
	r := newRouters(t, peer)
	opening, opened := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() { // until it hears one
		for opening.Err() == nil {
			r.advertise(advertisements[0], 0)
			time.Sleep(brief)
		}
	})
	h := open(t, n)
	opened()
	first.Wait()
	for i, a := range advertisements {
		r.advertise(a, i)
		for end := soon(); !h.routed(marker(i)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("advertisement %d: the host has no route to %v", i, marker(i))
			}
		}
		var s seen
		s.onLink, _ = r.sent(t, h, onLinkOfRouters)
		s.beyond, s.router = r.sent(t, h, beyondRouters)
		s.reachable, s.retrans = h.times()
		all = append(all, s)
	}
	return all
}

// marker returns the prefix that the advertisement with number i puts on the link, by which one
// sees that it was heard.
func marker(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0xaa, 0, 0, byte(i)}), 64)
}

var (
	onLinkOfRouters = netip.MustParseAddr("2001:db8::99")
	beyondRouters   = netip.MustParseAddr("2001:db8:7::7")
)

// routers plays two routers at the end of a cable, and all others there.
type routers struct {
	port   *lab.Port
	frames chan []byte // of UDP over IPv6
}

func newRouters(t *testing.T, peer *lab.Net) *routers {
	t.Helper()
	r := &routers{frames: make(chan []byte, 64)}
	must(t, peer.Do(func() (err error) {
		if err := lab.Up(cable, lab.Setup{Addresses: []netip.Prefix{
			netip.PrefixFrom(onLinkOfRouters, 64)}}); err != nil {
			return err
		}
		r.port, err = lab.OpenPort(cable)
		return err
	}))
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 1<<16); ; {
			f, err := r.port.Recv(buf, time.Time{})
			if err != nil {
				return
			}
			if len(f) > 62 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 17 {
				select {
				case r.frames <- append([]byte(nil), f...):
				default:
				}
			}
		}
	})
	t.Cleanup(func() {
		r.port.Close()
		reader.Wait()
	})
	return r
}

func routerMAC(router int) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, 0x99, byte(router)}
}

// advertise sends a, with the marker i.
func (r *routers) advertise(a advertisement, i int) {
	from := tcpip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: 0x99, 15: byte(a.router)})
	all := header.IPv6AllNodesMulticastAddress
	m := []byte{134, 0, 0, 0, a.hopLimit, a.preference << 3}
	m = binary.BigEndian.AppendUint16(m, a.lifetime)
	m = binary.BigEndian.AppendUint32(m, a.reachable)
	m = binary.BigEndian.AppendUint32(m, a.retrans)
	m = append(append(m, 1, 1), routerMAC(a.router)...)
	const onLink, auto = 0x80, 0x40
	m = append(m, prefixOption(netip.PrefixFrom(onLinkOfRouters, 64), onLink|auto, 3600)...)
	m = append(m, prefixOption(marker(i), onLink, 3600)...)
	if i > 0 { // netstack keeps no more than 10
		m = append(m, prefixOption(marker(i-1), onLink, 0)...)
	}
	header.ICMPv6(m).SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: m, Src: from, Dst: all}))
	f := make([]byte, 14+header.IPv6MinimumSize, 256)
	header.Ethernet(f).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(routerMAC(a.router)), Type: header.IPv6ProtocolNumber,
		DstAddr: header.EthernetAddressFromMulticastIPv6Address(all)})
	header.IPv6(f[14:]).Encode(&header.IPv6Fields{PayloadLength: uint16(len(m)), HopLimit: 255,
		TransportProtocol: header.ICMPv6ProtocolNumber, SrcAddr: from, DstAddr: all})
	_ = r.port.Send(append(f, m...))
}

// prefixOption builds that of RFC 4861 section 4.6.2.
func prefixOption(p netip.Prefix, flags byte, lifetime uint32) []byte {
	b := []byte{3, 4, byte(p.Bits()), flags}
	b = binary.BigEndian.AppendUint32(b, lifetime)
	b = binary.BigEndian.AppendUint32(b, lifetime)
	return append(append(b, 0, 0, 0, 0), p.Masked().Addr().AsSlice()...)
}

// sent makes h send a datagram and returns its hop limit and who it goes to: 1 or 2, 0 for none of
// the routers.
func (r *routers) sent(t *testing.T, h advertisedHost, to netip.Addr) (hopLimit byte, router int) {
	t.Helper()
	c, err := h.ListenPacket("udp6", "[::]:0")
	must(t, err)
	defer c.Close()
	_, err = c.WriteTo([]byte("which way?"), &net.UDPAddr{IP: to.AsSlice(), Port: 9})
	if err != nil {
		return 0, -1
	}
	for late := time.After(patience); ; {
		select {
		case f := <-r.frames:
			port := binary.BigEndian.Uint16(f[54:])
			if int(port) != c.LocalAddr().(*net.UDPAddr).Port ||
				netip.AddrFrom16([16]byte(f[38:54])) != to {
				continue
			}
			for i := range 2 {
				if string(f[:6]) == string(routerMAC(i+1)) {
					router = i + 1
				}
			}
			return f[21], router
		case <-late:
			t.Fatalf("no datagram to %v", to)
		}
	}
}

// advertisedKernel lets the kernel of n hear advertisements.
func advertisedKernel(t *testing.T, n *lab.Net) advertisedHost {
	sysctl := func(name string) string { return "/proc/sys/net/ipv6/" + name }
	must(t, n.Do(func() error {
		return os.WriteFile(sysctl("conf/"+cable+"/accept_ra"), []byte("1"), 0)
	}))
	read := func(name string) (ms int64) {
		must(t, n.Do(func() error {
			b, err := os.ReadFile(sysctl("neigh/" + cable + "/" + name))
			if err == nil {
				_, err = fmt.Sscan(strings.TrimSpace(string(b)), &ms)
			}
			return err
		}))
		return ms
	}
	return advertisedHost{inside{n, kernel{}}, func(p netip.Prefix) (is bool) {
		must(t, n.Do(func() error {
			link, err := netlink.LinkByName(cable)
			if err != nil {
				return err
			}
			routes, err := netlink.RouteList(link, netlink.FAMILY_V6)
			for _, r := range routes {
				is = is || r.Dst != nil && r.Dst.String() == p.String()
			}
			return err
		}))
		return is
	}, func() (int64, int64) { return read("base_reachable_time_ms"), read("retrans_time_ms") }}
}

// advertisedStack opens a stack on n's end of the cable.
func advertisedStack(t *testing.T, n *lab.Net) advertisedHost {
	var st *stack.Stack
	must(t, n.Do(func() (err error) {
		st, err = stack.Open(t.Context(), stack.Config{Dynamic: stack.SLAAC,
			Addressing: stack.AddressOptions{DuplicateDetection: -1},
			NIC:        dv.NIC{Device: cable, RxQueues: 1, TxQueues: 1},
			Uplink:     stack.UplinkOptions{Backend: stack.BackendPacket}})
		return err
	}))
	t.Cleanup(func() { st.Close() })
	return advertisedHost{inside{n, netstack{st}}, func(p netip.Prefix) bool {
		for _, r := range st.Netstack().GetRouteTable() {
			if r.Destination.String() == p.String() {
				return true
			}
		}
		return false
	}, func() (int64, int64) {
		c, err := st.Netstack().NUDConfigurations(1, header.IPv6ProtocolNumber)
		if err != nil {
			t.Fatal(err)
		}
		return c.BaseReachableTime.Milliseconds(), c.RetransmitTimer.Milliseconds()
	}}
}
