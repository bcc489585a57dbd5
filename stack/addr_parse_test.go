package stack_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

func TestParseAddress(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{in: "192.0.2.10/24", want: "192.0.2.10/24"},
		{in: "2001:db8::10/64", want: "2001:db8::10/64"},
		{in: "10.0.0.1/31", want: "10.0.0.1/31"},
		{in: "10.0.0.0/31", want: "10.0.0.0/31"},
		{in: "10.0.0.1/32", want: "10.0.0.1/32"},
		{in: "192.0.2.10", want: "192.0.2.10/-1"}, // Open finds the length
		{in: "2001:db8::10", want: "2001:db8::10/-1"},
		{in: "fe80::1%eth0", err: "not of the form"},
		{in: "224.0.0.5", err: "cannot belong to one host"},
		{in: "", err: `address "" is not of the form`},
		{in: "ten/24", err: "not of the form"},
		{in: "192.0.2.10/33", err: "not of the form"},
		{in: "192.0.2.0/24",
			err: "is the subnet itself; give a host address inside it, for example 192.0.2.1/24"},
		{in: "192.0.2.255/24", err: "broadcast"},
		{in: "10.1.127.255/17", err: "broadcast"},
		{in: "0.0.0.0/0", err: "cannot belong to one host"},
		{in: "224.0.0.5/24", err: "cannot belong to one host"},
		{in: "ff02::1/64", err: "cannot belong to one host"},
		{in: "127.0.0.1/8", err: "loopback"},
		{in: "::1/128", err: "loopback"},
		{in: "::ffff:192.0.2.10/120", err: "write it as 192.0.2.10"},
	} {
		got, err := stack.ParseAddress(c.in)
		switch {
		case c.err == "" && (err != nil || fmt.Sprintf("%s/%d", got.Addr(), got.Bits()) != c.want):
			t.Errorf("%q: %v, %v, want %s", c.in, got, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: %v, want an error with %q", c.in, err, c.err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	home := []netip.Prefix{prefix("192.0.2.1/24"), prefix("2001:db8::1/64")}
	cloud := []netip.Prefix{prefix("203.0.113.5/32"), prefix("2001:db8:5::5/128")}
	for _, c := range []struct {
		name string
		cfg  stack.Config
		err  string
	}{
		{"zero", stack.Config{}, ""},
		{"plain", stack.Config{Addresses: home,
			Gateways: []netip.Addr{addr("192.0.2.254"), addr("fe80::1")}}, ""},
		{"route", stack.Config{Addresses: home,
			Routes: []stack.Route{{Destination: prefix("198.51.100.0/24"),
				Gateway: addr("192.0.2.254")}}}, ""},
		{"gateway of an address without length",
			stack.Config{Addresses: []netip.Prefix{netip.PrefixFrom(addr("192.0.2.1"), -1)},
				Gateways: []netip.Addr{addr("192.0.2.254")}}, ""},
		{"VLAN of 13 bits", stack.Config{NIC: dv.NIC{VLAN: 4095}}, "VLAN is 4095 and must be"},
		{"MTU below IPv4's", stack.Config{NIC: dv.NIC{MTU: 100}}, "MTU is 100 and must be"},
		{"MTU below IPv6's", stack.Config{NIC: dv.NIC{MTU: 1279}}, "IPv6 needs 1280"},
		{"MTU of IPv6", stack.Config{NIC: dv.NIC{MTU: 1280}}, ""},
		{"MTU of less than none", stack.Config{NIC: dv.NIC{MTU: -1}}, "MTU is -1 and must be"},
		{"DSCP of seven bits", stack.Config{DSCP: 64}, "code points are 0 to 63"},
		{"no address", stack.Config{Addresses: []netip.Prefix{{}}}, "an address is empty"},
		{"address of an IPv4 address in IPv6 form",
			stack.Config{Addresses: []netip.Prefix{netip.PrefixFrom(addr("::ffff:192.0.2.1"), -1)}},
			"address ::ffff:192.0.2.1 is an IPv4 address in IPv6 form; write it as 192.0.2.1"},
		{"twice", stack.Config{Addresses: append(home[:1:1], prefix("192.0.2.1/16"))},
			"given twice"},
		{"two gateways", stack.Config{Addresses: home, Gateways: []netip.Addr{addr("192.0.2.253"),
			addr("192.0.2.254")}}, "second default router"},
		{"gateway elsewhere", stack.Config{Addresses: home,
			Gateways: []netip.Addr{addr("203.0.113.1")}},
			"gateway 203.0.113.1 is in no subnet of ours"},
		{"gateway of addresses without a subnet", stack.Config{Addresses: cloud,
			Gateways: []netip.Addr{addr("172.31.1.1"), addr("2001:db8:f::1")}}, ""},
		{"route of such", stack.Config{Addresses: cloud, Routes: []stack.Route{
			{Destination: prefix("0.0.0.0/0"), Gateway: addr("172.31.1.1")},
			{Destination: prefix("::/0"), Gateway: addr("2001:db8:f::1")}}}, ""},
		{"gateway of the other family", stack.Config{Addresses: cloud[:1],
			Gateways: []netip.Addr{addr("2001:db8:f::1")}}, "f::1 is in no subnet of ours"},
		{"gateway elsewhere, with a virtual address",
			stack.Config{Addresses: append(home[:2:2], cloud...),
				Gateways: []netip.Addr{addr("172.31.1.1")}},
			"if it is on the link, add a route to 172.31.1.1/32 without a gateway"},
		{"gateway elsewhere, with a virtual address of IPv6",
			stack.Config{Addresses: append(home[:2:2], cloud...),
				Gateways: []netip.Addr{addr("2001:db8:f::1")}},
			"if it is on the link, add a route to 2001:db8:f::1/128 without a gateway"},
		{"gateway of a link-local address's subnet, and one of none",
			stack.Config{Addresses: append(cloud[1:2:2], prefix("fe80::5/64")),
				Gateways: []netip.Addr{addr("2001:db8:f::1")}}, ""},
		{"gateway of a route to the link", stack.Config{Addresses: home,
			Gateways: []netip.Addr{addr("172.31.1.1")},
			Routes:   []stack.Route{{Destination: prefix("172.31.1.1/32")}}}, ""},
		{"gateway of a route by another", stack.Config{Addresses: home,
			Gateways: []netip.Addr{addr("172.31.1.1")}, Routes: []stack.Route{
				{Destination: prefix("172.31.1.1/32"), Gateway: addr("192.0.2.254")}}},
			"gateway 172.31.1.1 is in no subnet of ours"},
		{"route on the link", stack.Config{Addresses: home, Routes: []stack.Route{{OnLink: true,
			Destination: prefix("0.0.0.0/0"), Gateway: addr("172.31.1.1")}}}, ""},
		{"route on the link over all hosts", stack.Config{Addresses: cloud, Routes: []stack.Route{
			{OnLink: true, Destination: prefix("0.0.0.0/0"), Gateway: addr("255.255.255.255")}}},
			"not a router's address"},
		{"route on the link over loopback", stack.Config{Addresses: cloud, Routes: []stack.Route{
			{OnLink: true, Destination: prefix("0.0.0.0/0"), Gateway: addr("127.0.0.1")}}},
			"not a router's address"},
		{"route on the link over us", stack.Config{Addresses: cloud, Routes: []stack.Route{
			{OnLink: true, Destination: prefix("0.0.0.0/0"), Gateway: addr("203.0.113.5")}}},
			"our own address"},
		{"gateway is the broadcast address", stack.Config{Addresses: home,
			Gateways: []netip.Addr{addr("192.0.2.255")}}, "the broadcast address of 192.0.2.0/24"},
		{"gateway with a zone", stack.Config{Addresses: home,
			Gateways: []netip.Addr{addr("fe80::1%eth0")}}, "not a router's address"},
		{"source of a route", stack.Config{Addresses: home, Routes: []stack.Route{
			{Destination: prefix("198.51.100.0/24"), Gateway: addr("192.0.2.254"),
				Source: addr("192.0.2.1")}}}, ""},
		{"source of a route that is not ours", stack.Config{Addresses: home,
			Routes: []stack.Route{{Destination: prefix("198.51.100.0/24"),
				Gateway: addr("192.0.2.254"), Source: addr("192.0.2.2")}}},
			"source 192.0.2.2, which is no address of ours"},
		{"source of a route that may become ours", stack.Config{Dynamic: stack.DHCPv4,
			Routes: []stack.Route{{Destination: prefix("198.51.100.0/24"),
				Source: addr("192.0.2.2")}}}, ""},
		{"source of a route of the other family", stack.Config{Addresses: home,
			Routes: []stack.Route{{Destination: prefix("198.51.100.0/24"),
				Source: addr("2001:db8::1")}}}, "of its family"},
		{"gateway is us", stack.Config{Addresses: home, Gateways: []netip.Addr{addr("192.0.2.1")}},
			"our own address"},
		{"gateway is none", stack.Config{Addresses: home, Gateways: []netip.Addr{{}}},
			"not a router's address"},
		{"route to nowhere", stack.Config{Routes: []stack.Route{{}}}, "not a prefix"},
		{"route of two families", stack.Config{Addresses: home,
			Routes: []stack.Route{{Destination: prefix("2001:db8:1::/48"),
				Gateway: addr("192.0.2.254")}}}, "other IP family"},
		{"route with MTU", stack.Config{Routes: []stack.Route{{Destination: prefix("10.0.0.0/8"),
			MTU: -1}}}, "MTU -1"},
		{"DNS", stack.Config{DNS: []netip.Addr{{}}}, "DNS server"},
		{"congestion", stack.Config{TCP: stack.TCPOptions{CongestionControl: "bbr"}},
			`"bbr" is not supported; use "cubic" or "reno"`},
		{"buffers", stack.Config{TCP: stack.TCPOptions{SendBuffer: stack.BufferRange{Min: 9,
			Default: 8, Max: 10}}}, "not ascending"},
		{"small maximum",
			stack.Config{TCP: stack.TCPOptions{ReceiveBuffer: stack.BufferRange{Max: 1000}}}, ""},
		{"backlog", stack.Config{TCP: stack.TCPOptions{Backlog: -1}}, "backlog -1"},
		{"timers", stack.Config{TCP: stack.TCPOptions{OrphanTimeout: -1}}, "cannot be negative"},
		{"ACK delay", stack.Config{TCP: stack.TCPOptions{ACKDelay: time.Second}},
			"longer than TCP allows"},
		{"UDP", stack.Config{UDPBuffer: stack.BufferRange{Min: 2, Default: 1}}, "not ascending"},
		{"UDP large", stack.Config{UDPBuffer: stack.BufferRange{Default: 64 << 20}}, ""},
	} {
		err := c.cfg.Validate()
		if c.err == "" && err != nil || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
	}
}

// TestNoPrefixLength: New has no Linux interface to ask.
func TestNoPrefixLength(t *testing.T) {
	a, b := netpair.NewPorts(netpair.Faults{})
	defer b.Close()
	_, err := stack.New(a,
		stack.Config{Addresses: []netip.Prefix{netip.PrefixFrom(netpair.ServerIP4, -1)}})
	want := "address 192.0.2.1 has no prefix length; write the subnet's, for example 192.0.2.1/24"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestZeroConfig is useful: link-local addresses reach each other.
func TestZeroConfig(t *testing.T) {
	a, b := netpair.NewPorts(netpair.Faults{})
	none := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1}}
	server, err := stack.New(a, none)
	must(t, err)
	defer server.Close()
	client, err := stack.New(b, none)
	must(t, err)
	defer client.Close()

	all := server.Addrs()
	if len(all) != 1 || !all[0].Addr().IsLinkLocalUnicast() || !all[0].Addr().Is6() {
		t.Fatalf("addresses are %v, want one IPv6 link-local", all)
	}
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	to := net.JoinHostPort(all[0].Addr().String()+"%"+client.Name(), port(l.Addr()))
	c, err := client.Dial("tcp", to)
	must(t, err)
	defer c.Close()
	if c.RemoteAddr().String() != to {
		t.Errorf("remote address is %v, want %v", c.RemoteAddr(), to)
	}
	s, err := l.Accept()
	must(t, err)
	defer s.Close()
	if z := s.RemoteAddr().(*net.TCPAddr).Zone; z != server.Name() {
		t.Errorf("accepted from zone %q, want %q", z, server.Name())
	}
	var bad *net.AddrError
	if _, err := client.Dial("tcp", net.JoinHostPort(all[0].Addr().String()+"%elsewhere",
		"1")); !errors.As(err, &bad) {
		t.Errorf("unknown zone: %v, want an AddrError", err)
	}
	if server.MTU() != 1500 || server.HardwareAddr().String() != "02:00:00:00:00:0a" {
		t.Errorf("MTU %d, address %v", server.MTU(), server.HardwareAddr())
	}
}

// TestDuplicateAddress takes an address that another host has.
func TestDuplicateAddress(t *testing.T) {
	clock := newVirtualTime(t).Clock.Clock()
	for _, dup := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		a, b := netpair.NewPorts(netpair.Faults{})
		owner, err := stack.New(a,
			stack.Config{Addresses: []netip.Prefix{netip.MustParsePrefix(dup)},
				Addressing: stack.AddressOptions{DuplicateDetection: -1}, Clock: clock})
		must(t, err)
		cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: 2 * time.Second},
			Clock: clock,
			Addresses: []netip.Prefix{netip.MustParsePrefix(dup),
				netip.MustParsePrefix("192.0.2.50/24")}}
		_, err = stack.New(b, cfg)
		if !errors.Is(err, stack.ErrDuplicateAddress) ||
			!strings.Contains(err.Error(), "address "+dup+" is in use on this link") {
			t.Errorf("%s: %v, want ErrDuplicateAddress", dup, err)
		}
		if strings.Contains(dup, ".") && !strings.Contains(err.Error(), "02:00:00:00:00:0a") {
			t.Errorf("%s: %v does not name the owner", dup, err)
		}
		must(t, owner.Close())
	}
}

// TestNoDuplicate takes addresses that no host has, with detection on, and uses them at once.
func TestNoDuplicate(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{},
		netpair.Both(func(c *stack.Config) {
			c.Addressing.DuplicateDetection = 3 * time.Millisecond
		}))
	for _, ip := range []netip.Addr{netpair.ServerIP4, netpair.ServerIP6} {
		l, err := server.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
		must(t, err)
		c, err := client.Dial("tcp", l.Addr().String())
		must(t, err)
		c.Close()
	}
}

// TestAnnounce checks the frames that announce our addresses to neighbours.
func TestAnnounce(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 0xa}
	garp := bytes.Join([][]byte{
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, {8, 6}, // broadcast, ARP
		{0, 1, 8, 0, 6, 4, 0, 1}, mac, {192, 0, 2, 1}, {0, 0, 0, 0, 0, 0}, {192, 0, 2, 1},
	}, nil)
	// Version, payload of 32, ICMPv6, hop limit 255; from the address to all nodes; type 136 with
	// the override flag, the target and its link-layer address option.
	ip6 := netip.MustParseAddr("2001:db8::1").AsSlice()
	naHead := bytes.Join([][]byte{
		{0x33, 0x33, 0, 0, 0, 1}, mac, {0x86, 0xdd}, {0x60, 0, 0, 0, 0, 32, 58, 255}, ip6,
		netip.MustParseAddr("ff02::1").AsSlice(), {136, 0},
	}, nil)
	naTail := bytes.Join([][]byte{{0x20, 0, 0, 0}, ip6, {2, 1}, mac}, nil)

	var mu sync.Mutex
	arps, nas := 0, 0
	netpair.New(t, netpair.Faults{Tap: func(end int, f []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if bytes.Equal(f, garp) {
			arps++
		} else if end == 0 && f[12] == 8 && f[13] == 6 {
			t.Errorf("a stray ARP frame: % x", f)
		}
		if bytes.HasPrefix(f, naHead) && bytes.HasSuffix(f, naTail) &&
			sum16(icmpWithPseudo(f)) == 0xffff {
			nas++
		}
		return false
	}})
	mu.Lock()
	defer mu.Unlock()
	if arps == 0 || nas == 0 { // on a busy machine they may have been repeated already
		t.Errorf("%d gratuitous ARPs and %d neighbour advertisements", arps, nas)
	}
}

// icmpWithPseudo is what the ICMPv6 checksum of frame f is over (RFC 8200 section 8.1).
func icmpWithPseudo(f []byte) []byte {
	ip := f[14:]
	icmp := ip[40:]
	return bytes.Join([][]byte{ip[8:40], {0, 0, 0, byte(len(icmp)), 0, 0, 0, 58}, icmp}, nil)
}

// sum16 is the ones' complement sum of RFC 1071; 0xffff over data that includes its checksum.
func sum16(b []byte) uint32 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return s
}

// TestNoAnnounce sends no announcement for IPv4.
func TestNoAnnounce(t *testing.T) {
	var mu sync.Mutex
	arps := 0
	netpair.New(t, netpair.Faults{Tap: func(_ int, f []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if f[12] == 8 && f[13] == 6 {
			arps++
		}
		return false
	}}, netpair.Both(func(c *stack.Config) { c.Addressing.NoAnnounce = true }))
	mu.Lock()
	defer mu.Unlock()
	if arps != 0 {
		t.Errorf("%d ARP frames", arps)
	}
}

// TestRoutes dials beyond the link through a gateway and through a route, and without either.
func TestRoutes(t *testing.T) {
	far := netip.MustParseAddr("198.51.100.1")
	listener := func(t *testing.T, opt netpair.Option) error {
		server, client := netpair.New(t, netpair.Faults{}, manyAddresses, opt)
		l, err := server.Listen("tcp4", net.JoinHostPort(far.String(), "0"))
		must(t, err)
		c, err := client.Dial("tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return err
	}
	route := func(r stack.Route) netpair.Option {
		return func(server bool, c *stack.Config) {
			if !server {
				c.Routes = []stack.Route{r}
			}
		}
	}
	if err := listener(t, viaServer); err != nil {
		t.Errorf("gateway: %v", err)
	}
	if err := listener(t, route(stack.Route{Destination: netip.PrefixFrom(far, 32),
		Gateway: netpair.ServerIP4})); err != nil {
		t.Errorf("route: %v", err)
	}
	if err := listener(t, route(stack.Route{Destination: netip.PrefixFrom(far, 24)})); err != nil {
		t.Errorf("on-link route: %v", err)
	}
	err := listener(t, func(bool, *stack.Config) {})
	if want := "connect: network is unreachable"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("no route: %v, want %q", err, want)
	}
}

// TestResolvConf reads files a user might have.
func TestResolvConf(t *testing.T) {
	name := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(name, []byte("nameserver 192.0.2.1\n"), 0o644))
	netpair.New(t, netpair.Faults{}, netpair.Both(func(c *stack.Config) { c.ResolvConf = name }))
	a, b := netpair.NewPorts(netpair.Faults{})
	defer b.Close()
	_, err := stack.New(a, stack.Config{ResolvConf: name + ".not"})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "ResolvConf") {
		t.Errorf("missing file: %v", err)
	}
}
