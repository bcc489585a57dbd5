//go:build linux

package hoststack

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// multihomed describes a host with several addresses, which are added in this order, and whom it
// sends to.
type multihomed struct {
	name   string
	addrs  []string
	routes []routed
	to     []string
	// Flags of addresses that only a kernel can give: the case is for host mode alone.
	flags map[string]addressFlags
}

type routed struct {
	to, via, from string
	onLink        bool
}

// addressFlags holds some of those of ip-address(8).
type addressFlags struct {
	deprecated bool
	scope      netlink.Scope
}

// dual lists two addresses of each version in the subnets of the routers.
var dual = []string{"10.0.0.10/24", "10.0.0.200/24", "2001:db8::a/64", "2001:db8::c8/64"}

var multihomedHosts = []multihomed{
	{name: "a virtual address in the subnet", addrs: dual,
		to: []string{"10.0.0.201", "10.0.0.77", "255.255.255.255", "239.1.2.3", "2001:db8::c9",
			"2001:db8::b", "ff0e::fb", "ff05::fb"},
		routes: []routed{{to: "0.0.0.0/0", via: "10.0.0.1"}, {to: "::/0", via: "2001:db8::1"}}},
	{name: "routers in the second of two subnets",
		addrs: []string{"198.51.100.1/24", "10.0.0.10/24", "2001:db8:9::1/64", "2001:db8::a/64"},
		to: []string{"198.51.101.9", "203.0.113.9", "10.0.0.9", "198.51.100.9", "239.1.2.3",
			"224.0.0.251", "255.255.255.255", "2001:db8:9:1::9", "2001:db8:8000::9", "2620::9",
			"ff0e::fb"},
		routes: []routed{{to: "0.0.0.0/0", via: "10.0.0.1"}, {to: "::/0", via: "2001:db8::1"}}},
	{name: "routes with a source", addrs: slices.Concat(dual,
		[]string{"10.0.0.77/32", "2001:db8::77/128"}),
		to: []string{"192.0.2.5", "203.0.113.5", "10.0.0.78", "2001:db8:5::1", "2001:db8:6::1",
			"2001:db8::76"},
		routes: []routed{{to: "0.0.0.0/0", via: "10.0.0.1"}, {to: "::/0", via: "2001:db8::1"},
			{to: "192.0.2.0/24", via: "10.0.0.1", from: "10.0.0.77"},
			{to: "2001:db8:5::/48", via: "2001:db8::1", from: "2001:db8::77"}}},
	{name: "no subnet", addrs: []string{"203.0.113.5/32", "203.0.113.6/32", "2001:db8::5/128"},
		to: []string{"198.51.100.9", "203.0.113.7", "172.31.1.1", "2001:db8:1::9"},
		routes: []routed{{to: "0.0.0.0/0", via: "172.31.1.1", onLink: true},
			{to: "::/0", via: "2001:db8:f::1", onLink: true}}},
	{name: "a subnet beside", addrs: []string{"203.0.113.5/32", "10.0.0.10/24"},
		to: []string{"198.51.100.9", "192.0.2.9", "10.0.0.9", "198.18.0.9", "172.31.1.1"},
		routes: []routed{{to: "0.0.0.0/0", via: "172.31.1.1", onLink: true},
			{to: "192.0.2.0/24", via: "10.0.0.1"}, {to: "198.18.0.0/15"}}},
	{name: "scopes and labels", addrs: []string{"fd00::a/64", "2001:db8::a/64", "2002:a00:1::a/64",
		"2001:db8:0:1::a/64", "fec0::a/64"},
		to: []string{"fd00::b", "fd00:1::b", "2001:db8::b", "2002:a00:2::b", "2001:db8:0:2::b",
			"2620::b", "fec0::b", "fec0:0:0:1::b", "ff0e::fb", "ff05::fb", "ff02::fb", "ff08::fb"},
		routes: []routed{{to: "::/0", via: "2001:db8::1"}}},
	{name: "prefix lengths bound what is in common",
		addrs:  []string{"2001:db8:0:1::a/48", "2001:db8:0:2::a/64"},
		to:     []string{"2001:db8:0:1::b", "2001:db8:0:3::b", "2001:db8:0:2::b", "2001:db9::1"},
		routes: []routed{{to: "::/0", via: "2001:db8::1"}}},
	{name: "deprecated addresses and such of the link", addrs: slices.Concat(dual,
		[]string{"169.254.7.7/16"}),
		to: []string{"2001:db8::c9", "10.0.0.201", "203.0.113.9", "192.0.2.9", "169.254.7.8"},
		routes: []routed{{to: "::/0", via: "2001:db8::1"}, {to: "0.0.0.0/0", via: "10.0.0.1"},
			{to: "192.0.2.0/24", via: "169.254.9.9"}},
		flags: map[string]addressFlags{"2001:db8::c8/64": {deprecated: true},
			"10.0.0.10/24": {deprecated: true}, "169.254.7.7/16": {scope: netlink.SCOPE_LINK}}},
}

// TestSourceAddress compares from which address the kernel's sockets send, those of a stack on the
// host's addresses, and those of a stack with such addresses of its own: TCP, and UDP connected or
// not.
func TestSourceAddress(t *testing.T) {
	need.Long(t, "two cables for each of 8 hosts, 15 s")
	need.NetNS(t)
	for _, m := range multihomedHosts {
		t.Run(m.name, func(t *testing.T) {
			host, peer := m.lay(t)
			m.configure(t, host)
			want := m.sources(t, inside{host, kernel{}}, peer)
			for what, from := range want {
				if _, err := netip.ParseAddr(from); err != nil && from != linkLocal {
					t.Fatalf("the kernel: %s from %s", what, from)
				}
			}
			onHost := inside{host, kernel{}}.onHost(t, dv.NIC{Device: cable}, stack.BackendAuto,
				0)
			m.compare(t, "host mode", want, m.sources(t, onHost, peer))
			if m.flags != nil {
				return
			}
			alone, peer := m.lay(t)
			connect(t, alone)
			m.compare(t, "addresses of its own", want, m.sources(t, m.own(t, alone), peer))
		})
	}
}

// lay makes the host, without its addresses, and at the other end of its cable all whom it sends
// to.
func (m *multihomed) lay(t *testing.T) (host, peer *lab.Net) {
	t.Helper()
	host, peer = newHost(t, "host"), newHost(t, "peer")
	must(t, lab.Cable(host, cable, peer, cable))
	connect(t, host, peer)
	for _, n := range []*lab.Net{host, peer} {
		// The kernel adds the route to groups on the link, and then this address, some time after
		// the carrier is there.
		await(t, n, "link-local address", func(link netlink.Link) (bool, error) {
			addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
			return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
				return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
			}), err
		})
	}
	must(t, peer.Do(func() error {
		link, err := netlink.LinkByName(cable)
		if err != nil {
			return err
		}
		others := slices.Clone(m.to)
		for _, r := range m.routes {
			others = append(others, r.via)
		}
		for _, a := range others {
			a, err := netip.ParseAddr(a)
			if err != nil || a.IsMulticast() || a.As16()[15] == 255 {
				continue // a group, all hosts, or no router
			}
			if err := addTo(link, netip.PrefixFrom(a, a.BitLen()), addressFlags{}); err != nil {
				return err
			}
		}
		for _, a := range m.addrs {
			a := netip.MustParsePrefix(a).Addr()
			if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index,
				Dst: ipNet(netip.PrefixFrom(a, a.BitLen()))}); err != nil {
				return fmt.Errorf("route to %s: %w", a, err)
			}
		}
		return nil
	}))
	return host, peer
}

// addTo adds an address to the calling thread's namespace.
func addTo(link netlink.Link, p netip.Prefix, f addressFlags) error {
	a := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD, Scope: int(f.scope)}
	if p.Addr().Is4() {
		a.Flags = 0
	}
	if f.deprecated {
		a.ValidLft, a.PreferedLft = 3600, 0
	}
	if err := netlink.AddrReplace(link, a); err != nil && err != unix.EEXIST {
		return fmt.Errorf("address %s: %w", p, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// configure gives the kernel the host's addresses and routes.
func (m *multihomed) configure(t *testing.T, host *lab.Net) {
	t.Helper()
	must(t, host.Do(func() error {
		link, err := netlink.LinkByName(cable)
		if err != nil {
			return err
		}
		for _, a := range m.addrs {
			if err := addTo(link, netip.MustParsePrefix(a), m.flags[a]); err != nil {
				return err
			}
		}
		for _, r := range m.routes {
			route := &netlink.Route{LinkIndex: link.Attrs().Index,
				Dst: ipNet(netip.MustParsePrefix(r.to)), Gw: net.ParseIP(r.via),
				Src: net.ParseIP(r.from)}
			if r.onLink {
				route.Flags = int(netlink.FLAG_ONLINK)
			}
			if r.via == "" {
				route.Scope = netlink.SCOPE_LINK
			}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("route %+v: %w", r, err)
			}
		}
		return nil
	}))
}

// own opens a stack that has the host's addresses and routes in the place of the kernel.
func (m *multihomed) own(t *testing.T, host *lab.Net) inside {
	t.Helper()
	cfg := stack.Config{NIC: dv.NIC{Device: cable, RxQueues: 1, TxQueues: 1},
		Uplink:     stack.UplinkOptions{Backend: stack.BackendPacket},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}}
	for _, a := range m.addrs {
		cfg.Addresses = append(cfg.Addresses, netip.MustParsePrefix(a))
	}
	for _, r := range m.routes {
		route := stack.Route{Destination: netip.MustParsePrefix(r.to), OnLink: r.onLink}
		if r.via != "" {
			route.Gateway = netip.MustParseAddr(r.via)
		}
		if r.from != "" {
			route.Source = netip.MustParseAddr(r.from)
		}
		cfg.Routes = append(cfg.Routes, route)
	}
	var st *stack.Stack
	must(t, host.Do(func() (err error) {
		st, err = stack.Open(context.Background(), cfg)
		return err
	}))
	t.Cleanup(func() { st.Close() })
	return inside{host, netstack{st}}
}

// sources returns from which address h sends, by what is sent to whom.
func (m *multihomed) sources(t *testing.T, h inside, peer *lab.Net) map[string]string {
	t.Helper()
	other := inside{peer, kernel{}}
	l, err := other.Listen("tcp", ":0")
	must(t, err)
	defer l.Close()
	got := map[string]string{}
	for _, to := range m.to {
		a := netip.MustParseAddr(to)
		version := map[bool]string{true: "4", false: "6"}[a.Is4()]
		if group := a.IsMulticast() || to == "255.255.255.255"; !group {
			got["udp to "+to] = m.connected(t, h, "udp"+version, net.JoinHostPort(to, "9"))
			got["tcp to "+to] = m.connected(t, h, "tcp"+version, at(a, l.Addr()))
		}
		got["datagram to "+to] = m.datagram(t, h, other, version, a)
	}
	return got
}

// connected returns from which address h connects.
func (m *multihomed) connected(t *testing.T, h inside, network, to string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := h.DialContext(ctx, network, to)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	return sourceOf(c.LocalAddr())
}

// datagram returns from which address a socket of h that is neither bound nor connected sends.
func (m *multihomed) datagram(t *testing.T, h, other inside, version string,
	to netip.Addr) string {
	t.Helper()
	var in net.PacketConn
	var err error
	if to.IsMulticast() {
		ifi := &net.Interface{}
		must(t, other.n.Do(func() (err error) {
			ifi, err = net.InterfaceByName(cable)
			return err
		}))
		in, err = enter(other, func() (net.PacketConn, error) {
			return net.ListenMulticastUDP("udp"+version, ifi, &net.UDPAddr{IP: to.AsSlice()})
		})
	} else {
		in, err = other.ListenPacket("udp"+version, ":0")
	}
	must(t, err)
	defer in.Close()
	out, err := h.ListenPacket("udp"+version, ":0")
	must(t, err)
	defer out.Close()
	if c, ok := out.(*net.UDPConn); ok {
		allowBroadcast(t, c)
	}
	dst := &net.UDPAddr{IP: to.AsSlice(), Port: in.LocalAddr().(*net.UDPAddr).Port}
	if to.IsLinkLocalMulticast() && to.Is6() {
		dst.Zone = cable
		// Package net caches the numbers of names, of all namespaces together.
		if _, ok := out.(*net.UDPConn); ok {
			must(t, h.n.Do(func() error {
				link, err := netlink.LinkByName(cable)
				if err == nil {
					dst.Zone = strconv.Itoa(link.Attrs().Index)
				}
				return err
			}))
		}
	}
	if _, err = out.WriteTo([]byte("from where?"), dst); err != nil {
		return err.Error()
	}
	must(t, in.SetReadDeadline(time.Now().Add(ample)))
	_, from, err := in.ReadFrom(make([]byte, 64))
	if err != nil {
		return "nothing"
	}
	return sourceOf(from)
}

// linkLocal stands for an address that is of each interface.
const linkLocal = "link-local"

// sourceOf returns the address of an end, without what differs between hosts that are alike.
func sourceOf(a net.Addr) string {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return err.Error()
	}
	if ip := p.Addr().Unmap().WithZone(""); !ip.Is6() || !ip.IsLinkLocalUnicast() {
		return ip.String()
	}
	return linkLocal
}

// allowBroadcast sets SO_BROADCAST, which package net does for sockets of its own dials.
func allowBroadcast(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	}))
}

// compare fails the test for each source that is not the kernel's.
func (m *multihomed) compare(t *testing.T, whose string, want, got map[string]string) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(want)) {
		if got[what] != want[what] {
			t.Errorf("%s: %s from %s, the kernel's from %s", whose, what, got[what], want[what])
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
