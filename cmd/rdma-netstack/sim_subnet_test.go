package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// inANetworkOf makes a machine whose network has these prefixes, the machine as .7 and its default
// gateway as .1, which serves HTTP.
func inANetworkOf(t *testing.T, prefixes ...string) *script {
	t.Helper()
	need.NetNS(t)
	need.TUN(t)
	s := &script{t: t, dir: t.TempDir()}
	if err := s.enter(); err != nil {
		t.Fatal(err)
	}
	gateway, err := lab.New("gateway")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gateway.Close() })
	if err := lab.Cable(s.net, "eth0", gateway, "eth0"); err != nil {
		t.Fatal(err)
	}
	var machine, router lab.Setup
	for _, p := range prefixes {
		first := netip.MustParsePrefix(p).Addr().Next()
		bits := netip.MustParsePrefix(p).Bits()
		router.Addresses = append(router.Addresses, netip.PrefixFrom(first, bits))
		for range 6 {
			first = first.Next()
		}
		machine.Addresses = append(machine.Addresses, netip.PrefixFrom(first, bits))
	}
	if err := s.net.Do(func() error { return lab.Up("eth0", machine) }); err != nil {
		t.Fatal(err)
	}
	if err := gateway.Do(func() error { return lab.Up("eth0", router) }); err != nil {
		t.Fatal(err)
	}
	for _, p := range router.Addresses {
		ip(t, s, "route", "add", "default", "via", p.Addr().String())
		serveHello(t, gateway, p.Addr())
	}
	return s
}

// settledNetwork waits until the kernel has seen eth0's carrier and given it a link-local address,
// which it does on its own after Up, and returns the addresses and routes.
func settledNetwork(t *testing.T, s *script) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		network := ip(t, s, "-o", "address") + ip(t, s, "route")
		if strings.Contains(network, "fe80::") && !strings.Contains(network, "linkdown") &&
			!strings.Contains(network, "tentative") {
			return network
		}
		if time.Now().After(deadline) {
			t.Fatalf("eth0 is not up:\n%s", network)
		}
	}
}

func ip(t *testing.T, s *script, args ...string) string {
	t.Helper()
	if err := s.run(s.command(append([]string{need.Tool(t, "ip")}, args...))); err != nil ||
		s.code != 0 {
		t.Fatalf("ip %q: %v %s", args, err, s.stderr)
	}
	return s.stdout
}

func serveHello(t *testing.T, n *lab.Net, at netip.Addr) {
	t.Helper()
	ln, err := n.Listen("tcp", netip.AddrPortFrom(at, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		io.WriteString(w, "the gateway")
	})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
}

// getFrom fetches a URL from the machine's side.
func getFrom(t *testing.T, n *lab.Net, url string) string {
	t.Helper()
	transport := &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(q)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}

// serving starts a server and returns the addresses that it reports, and the URL of its status
// page.
func serving(t *testing.T, s *script, args ...string) (addrs []netip.Addr, url string) {
	t.Helper()
	if err := s.start(append([]string{"serve", "http", "--device", "sim"}, args...)); err != nil {
		t.Fatal(err)
	}
	const line = `^serving HTTP on (\S+)(?: and (\S+))? \(.*; try: curl (\S+)`
	if err := s.out.await(line); err != nil {
		t.Fatal(err, s.errs)
	}
	said := regexp.MustCompile("(?m)" + line).FindStringSubmatch(s.out.String())
	for _, a := range said[1:3] {
		if a != "" {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
	}
	return addrs, said[3]
}

func (s *script) stop(t *testing.T) {
	t.Helper()
	for _, step := range [][]string{{"signal", "TERM"}, {"end"}, {"code", "0"}} {
		if err := s.step(step); err != nil {
			t.Error(err, s.stderr)
		}
	}
}

// TestServeSimLeavesTheNetworkAlone starts README's first server on machines whose network, with
// its default gateway, uses the server's default subnet: the server chooses another, reports it,
// answers there, and the gateway still answers.
func TestServeSimLeavesTheNetworkAlone(t *testing.T) {
	for _, c := range []struct {
		name     string
		network  []string
		more     [][]string // of ip
		want     string     // the addresses chosen
		gateways []string
	}{
		{"free", []string{"10.0.0.0/24"}, nil, "192.0.2.10 2001:db8::10", []string{"10.0.0.1"}},
		{"TEST-NET-1", []string{"192.0.2.0/24"}, nil,
			"198.51.100.10 2001:db8::10", []string{"192.0.2.1"}},
		{"both versions", []string{"192.0.2.0/24", "2001:db8::/64"}, nil,
			"198.51.100.10 2001:db8:100::10",
			[]string{"192.0.2.1", "[2001:db8::1]"}},
		{"wider and narrower", []string{"192.0.0.0/8", "2001:db8::/48"},
			[][]string{{"address", "add", "198.51.100.200/32", "dev", "lo"}},
			"203.0.113.10 2001:db8:100::10", []string{"192.0.0.1"}},
		{"routes", []string{"10.0.0.0/24"}, [][]string{
			{"route", "add", "192.0.2.128/25", "via", "10.0.0.1"},
			{"route", "add", "blackhole", "198.51.100.0/24"},
			{"route", "add", "203.0.113.64/26", "via", "10.0.0.1", "table", "7"},
			{"route", "add", "2001:db8::/32", "dev", "eth0"},
		}, "198.18.0.10 3fff::10", []string{"10.0.0.1"}},
		{"a VPN's two halves", []string{"10.0.0.0/24"}, [][]string{
			{"route", "add", "0.0.0.0/1", "via", "10.0.0.1"},
			{"route", "add", "128.0.0.0/1", "via", "10.0.0.1"},
		}, "192.0.2.10 2001:db8::10", []string{"10.0.0.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := inANetworkOf(t, c.network...)
			for _, args := range c.more {
				ip(t, s, args...)
			}
			addrs, url := serving(t, s)
			var got []string
			for _, a := range addrs {
				got = append(got, a.String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("it is at %v, want %s", got, c.want)
			}
			if !strings.Contains(getFrom(t, s.net, url), `"requests"`) {
				t.Errorf("no status page at %s", url)
			}
			for _, g := range c.gateways {
				if body := getFrom(t, s.net, "http://"+g+"/"); body != "the gateway" {
					t.Errorf("from the gateway %s came %q", g, body)
				}
			}
			s.stop(t)
		})
	}
}

// TestServeSimRefusesTheNetwork gives the server addresses that the machine uses: one sentence says
// what uses them.
func TestServeSimRefusesTheNetwork(t *testing.T) {
	s := inANetworkOf(t, "192.0.2.0/24", "2001:db8::/64")
	ip(t, s, "route", "add", "10.1.0.0/16", "via", "192.0.2.1")
	ip(t, s, "address", "add", "198.51.100.200/32", "dev", "lo")
	before := settledNetwork(t, s)
	for _, c := range []struct{ name, address, wire, want string }{
		{"the network", "192.0.2.10/24", "tap:slice0",
			`--address 192.0.2.10/24: eth0 has 192.0.2.7/24`},
		{"a part of it", "192.0.2.130/25", "tap:slice0",
			`--address 192.0.2.130/25: eth0 has 192.0.2.7/24`},
		{"more than it", "192.0.9.10/20", "tap:slice0", `eth0 has 192.0.2.7/24`},
		{"IPv6", "2001:db8::10/64", "tap:slice0", `eth0 has 2001:db8::7/64`},
		{"a route", "10.1.2.3/24", "tap:slice0", `there is a route to 10.1.0.0/16 over eth0`},
		{"an address of lo", "198.51.100.10/24", "tap:slice0", `lo has 198.51.100.200/32`},
		{"the machine's own on its wire", "192.0.2.7/24", "packet:eth0", `eth0 has 192.0.2.7/24`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := s.run(s.program([]string{"serve", "iperf3", "--device", "sim", "--address",
				c.address, "--sim-wire", c.wire})); err != nil {
				t.Fatal(err)
			}
			if s.code != exitFailed || !strings.Contains(s.stderr, c.want) ||
				strings.Count(s.stderr, "\n") != 1 {
				t.Errorf("exit code %d, %q; want %d, one line with %q", s.code,
					s.stderr, exitFailed, c.want)
			}
		})
	}
	if after := ip(t, s, "-o", "address") + ip(t, s, "route"); after != before {
		t.Errorf("the machine had\n%s\nand now has\n%s", before, after)
	}
}

// TestServeSimOnAWireThatIsThere serves on an existing interface with an address of that
// interface's own network.
func TestServeSimOnAWireThatIsThere(t *testing.T) {
	s := inANetworkOf(t, "192.0.2.0/24")
	addrs, _ := serving(t, s, "--address", "192.0.2.10/24", "--sim-wire", "packet:eth0")
	if len(addrs) != 1 || addrs[0] != netip.MustParseAddr("192.0.2.10") {
		t.Errorf("it is at %v", addrs)
	}
	s.stop(t)
}

// TestServeSimWithoutSubnet gives the server an address without a subnet, as clouds do, with a
// router on the link or beside a subnet, and one of a subnet of two: it answers the machine.
func TestServeSimWithoutSubnet(t *testing.T) {
	for name, args := range map[string]string{
		"gateway":      "--address 192.0.2.10/32 --gateway 198.51.100.1",
		"IPv6 gateway": "--address 2001:db8::10/128 --gateway fe80::1",
		"both": "--address 192.0.2.10/32 --address 2001:db8::10/128 " +
			"--gateway 198.51.100.1 --gateway 2001:db8:9::1",
		"beside a subnet": "--address 192.0.2.10/32 --address 198.51.100.10/24",
		"the first of 2":  "--address 192.0.2.10/31",
		"the second of 2": "--address 192.0.2.11/31",
		"IPv6, of 2":      "--address 2001:db8::11/127",
	} {
		t.Run(name, func(t *testing.T) {
			s := inANetworkOf(t, "10.0.0.0/24")
			addrs, _ := serving(t, s, strings.Fields(args)...)
			for _, a := range addrs {
				url := "http://" + netip.AddrPortFrom(a, 80).String() + "/-/status"
				if getFrom(t, s.net, url) == "" {
					t.Errorf("no answer from %s", url)
				}
			}
			s.stop(t)
		})
	}
}

// TestServeSimReachesNobody refuses an address that has neither subnet nor router.
func TestServeSimReachesNobody(t *testing.T) {
	s := inANetworkOf(t, "10.0.0.0/24")
	for _, address := range []string{"192.0.2.10/32", "2001:db8::10/128",
		"192.0.2.10/32 --address 2001:db8::10/64"} {
		if err := s.run(s.program(strings.Fields("serve http --device sim --address " +
			address))); err != nil {
			t.Fatal(err)
		}
		if s.code == 0 || strings.Count(s.stderr, "\n") != 1 ||
			!strings.Contains(s.stderr, "without a subnet or a --gateway") {
			t.Errorf("%s: exit code %d, %q", address, s.code, s.stderr)
		}
	}
}

// TestServeSimTogether starts several servers at once, each on a TAP interface of its own: no two
// choose the same subnet.
func TestServeSimTogether(t *testing.T) {
	first := inANetworkOf(t, "10.0.0.0/24")
	all := []*script{first, {t: t, dir: t.TempDir(), net: first.net},
		{t: t, dir: t.TempDir(), net: first.net}}
	for i, s := range all {
		if err := s.start([]string{"serve", "http", "--device", "sim", "--sim-wire",
			"tap:slice" + string(rune('0'+i))}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, s := range all {
		if err := s.out.await(`^serving HTTP on \S+ and \S+ .*\n`); err != nil {
			t.Fatal(err, s.errs)
		}
		for _, a := range strings.Fields(s.out.String())[3:6] {
			if a != "and" && seen[a] {
				t.Errorf("two servers are at %s", a)
			}
			seen[a] = true
		}
		s.stop(t)
	}
}

// TestServeSimWithoutIPv6 is a machine with IPv6 off, as a container is by default.
func TestServeSimWithoutIPv6(t *testing.T) {
	s := inANetworkOf(t, "10.0.0.0/24")
	if err := s.run(s.command([]string{"sh", "-c",
		"echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6"})); err != nil || s.code != 0 {
		need.That(t, "ipv6", errors.New("IPv6 cannot be turned off: "+s.stderr))
	}
	addrs, url := serving(t, s)
	if len(addrs) != 1 || !addrs[0].Is4() {
		t.Errorf("it is at %v, want an IPv4 address alone", addrs)
	}
	getFrom(t, s.net, url)
	s.stop(t)
}

// TestNamespacesNeedNoFreeSubnet runs commands that use their own namespaces on a machine in
// TEST-NET-1.
func TestNamespacesNeedNoFreeSubnet(t *testing.T) {
	need.Long(t, "runs compare and demo, 6 s")
	for _, args := range [][]string{{"compare", "--time", "30ms", "--json"},
		{"demo", "--clients", "go"}} {
		t.Run(args[0], func(t *testing.T) {
			s := inANetworkOf(t, "192.0.2.0/24", "2001:db8::/64")
			if err := s.run(s.program(args)); err != nil || s.code != exitDone {
				t.Errorf("%v, exit code %d: %s", err, s.code, s.stderr)
			}
			if body := getFrom(t, s.net, "http://192.0.2.1/"); body != "the gateway" {
				t.Errorf("from the gateway came %q", body)
			}
		})
	}
}
