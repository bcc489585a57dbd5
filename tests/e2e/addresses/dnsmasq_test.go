package addresses

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// network is a namespace with a router that runs dnsmasq, and a NIC connected to it.
type network struct {
	ns  *lab.Net
	nic *simnic.NIC
	log journal
}

// journal collects the output of a running program.
type journal struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

var router4, router6 = netip.MustParsePrefix("10.50.0.1/24"), netip.MustParsePrefix("fd50::1/64")

// The router's addresses for hosts without a subnet.
var onLink4, onLink6 = netip.MustParsePrefix("172.31.1.1/32"), netip.MustParsePrefix("fd51::1/128")

// newNetwork starts dnsmasq with these options.
func newNetwork(t *testing.T, options ...string) *network {
	t.Helper()
	need.TUN(t)
	need.Tool(t, "dnsmasq")
	netpair.CheckLeaks(t)
	n := &network{}
	var err error
	if n.nic, err = simnic.New(simnic.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.nic.Close() })
	if n.ns, err = lab.New("router"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.ns.Close() })
	err = n.ns.Do(func() error {
		tap, err := wire.OpenTAP("lan0")
		if err != nil {
			return err
		}
		if err := n.nic.ConnectWire(tap); err != nil {
			return err
		}
		return lab.Up("lan0", lab.Setup{Addresses: []netip.Prefix{router4, router6,
			onLink4, onLink6}})
	})
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--no-daemon", "--conf-file=/dev/null", "--interface=lan0",
		"--bind-interfaces", "--no-ping", "--user=root",
		"--dhcp-leasefile=" + filepath.Join(t.TempDir(), "leases")}, options...)
	if !slices.Contains(options, "--port=53") {
		args = append(args, "--port=0")
	}
	cmd := exec.Command("dnsmasq", args...)
	cmd.Stdout, cmd.Stderr = &n.log, &n.log
	if err := n.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("dnsmasq:\n%s", n.log.String())
		}
	})
	return n
}

// open opens a stack on the NIC.
func (n *network) open(t *testing.T, cfg stack.Config) (*stack.Stack, error) {
	t.Helper()
	cfg.NIC = dv.NIC{
		Model: dv.Model{
			Kernel: kernel.Opener(n.nic),
			Facts:  dv.PortFacts{Name: "sim", MAC: n.nic.MAC(), MTU: n.nic.MTU()},
		},
	}
	s, err := stack.Open(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

// has reports whether the stack has an address in p, and returns it.
func has(s *stack.Stack, p netip.Prefix) (netip.Addr, bool) {
	for _, a := range s.Addrs() {
		if p.Contains(a.Addr()) {
			return a.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// await waits until has reports true: with auto the second address may come later.
func await(t *testing.T, s *stack.Stack, p netip.Prefix) netip.Addr {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		if a, ok := has(s, p); ok {
			return a
		}
	}
	t.Fatalf("no address in %v: %v", p, s.Addrs())
	return netip.Addr{}
}

// The options of dnsmasq, and the prefixes of the addresses that it gives.
var (
	dhcp4 = []string{"--dhcp-range=10.50.0.100,10.50.0.110,2m"}
	slaac = []string{"--enable-ra", "--dhcp-range=fd50::,ra-only,64,2m"}
	dhcp6 = []string{"--enable-ra", "--dhcp-range=fd50::100,fd50::1ff,64,2m"}

	leases4 = []netip.Prefix{netip.MustParsePrefix("10.50.0.96/28")}
	prefix6 = []netip.Prefix{netip.MustParsePrefix("fd50::/64")}
	leases6 = []netip.Prefix{netip.MustParsePrefix("fd50::100/120")}
)

func TestAddressesFromTheNetwork(t *testing.T) {
	need.Long(t, "ten networks with servers of their own, 20 s")
	tests := []struct {
		name    string
		options []string
		cfg     stack.Config
		want    []netip.Prefix
	}{
		{"DHCP", dhcp4, stack.Config{Dynamic: stack.DHCPv4}, leases4},
		{"DHCP with routes", append(dhcp4, "--dhcp-option=3",
			"--dhcp-option=121,198.51.100.0/24,10.50.0.1"), stack.Config{Dynamic: stack.DHCPv4},
			leases4},
		{"DHCP without a subnet", append(dhcp4, "--dhcp-option=1,255.255.255.255",
			"--dhcp-option=3,172.31.1.1"), stack.Config{Dynamic: stack.DHCPv4}, leases4},
		{"DHCP without a subnet, with routes", append(dhcp4, "--dhcp-option=1,255.255.255.255",
			"--dhcp-option=121,172.31.1.1/32,0.0.0.0,0.0.0.0/0,172.31.1.1"),
			stack.Config{Dynamic: stack.Auto}, leases4},
		{"SLAAC", slaac, stack.Config{Dynamic: stack.SLAAC}, prefix6},
		{"DHCPv6", dhcp6, stack.Config{Dynamic: stack.SLAAC | stack.DHCPv6}, leases6},
		{"auto: DHCP", dhcp4, stack.Config{Dynamic: stack.Auto}, leases4},
		{"auto: SLAAC", slaac, stack.Config{Dynamic: stack.Auto}, prefix6},
		{"auto: DHCPv6", dhcp6, stack.Config{Dynamic: stack.Auto}, leases6},
		{"auto: DHCP and SLAAC", append(dhcp4, slaac...), stack.Config{Dynamic: stack.Auto},
			append(leases4, prefix6...)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t, tt.options...)
			s, err := n.open(t, tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				addr := await(t, s, want)
				pongs, err := probe.New(n.ns, "ping").Ping(t.Context(), addr, 3)
				if err != nil || pongs.Received == 0 {
					t.Errorf("the router pings %v: %v, %v", addr, pongs, err)
				}
				dials(t, n, s, addr)
			}
		})
	}
}

// dials checks that the stack reaches an address behind the router by an advertised route.
func dials(t *testing.T, n *network, s *stack.Stack, from netip.Addr) {
	t.Helper()
	beyond := netip.MustParseAddr("198.51.100.7")
	if from.Is6() {
		beyond = netip.MustParseAddr("2001:db8:7::7")
	}
	err := n.ns.Do(func() error {
		return lab.Up("lo",
			lab.Setup{Addresses: []netip.Prefix{netip.PrefixFrom(beyond, beyond.BitLen())}})
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := n.ns.Listen("tcp", netip.AddrPortFrom(beyond, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := s.DialContext(ctx, "tcp", ln.Addr().String())
	// the router's kernel needs a moment for its new address
	for errors.Is(err, unix.ENETUNREACH) && ctx.Err() == nil {
		c, err = s.DialContext(ctx, "tcp", ln.Addr().String())
	}
	if err != nil {
		t.Fatalf("dial over the advertised router: %v", err)
	}
	defer c.Close()
	if got := netip.MustParseAddrPort(c.LocalAddr().String()).Addr(); got.Is4() != from.Is4() {
		t.Errorf("dialled from %v, own address is %v", got, from)
	}
}

// TestLinkComesBack: when the cable is connected again, the servers are asked whether the addresses
// are still valid, and they are.
func TestLinkComesBack(t *testing.T) {
	n := newNetwork(t, slices.Concat(dhcp4, dhcp6, []string{"--log-dhcp"})...)
	s, err := n.open(t, stack.Config{Dynamic: stack.Auto})
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(leases4, leases6)
	var before []netip.Addr
	for _, p := range all {
		before = append(before, await(t, s, p))
	}
	asked := strings.Count(n.log.String(), "DHCPREQUEST(lan0)")
	n.nic.SetLink(false)
	n.nic.SetLink(true)
	said := func() bool {
		log := n.log.String()
		return strings.Contains(log, "DHCPCONFIRM(lan0)") &&
			strings.Count(log, "DHCPREQUEST(lan0)") > asked
	}
	for end := time.Now().Add(30 * time.Second); !said(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the servers were not asked")
		}
	}
	for i, p := range all {
		if now := await(t, s, p); now != before[i] {
			t.Errorf("%v became %v", before[i], now)
		}
	}
}

func TestResolversFromTheNetwork(t *testing.T) {
	n := newNetwork(t, "--dhcp-range=10.50.0.100,10.50.0.110,2m", "--dhcp-option=6,10.50.0.1",
		"--port=53", "--no-resolv", "--no-hosts",
		"--address=/www.example/192.0.2.99")
	s, err := n.open(t, stack.Config{Dynamic: stack.DHCPv4})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ips, err := s.Resolver().LookupHost(ctx, "www.example")
	if err != nil || fmt.Sprint(ips) != "[192.0.2.99]" {
		t.Errorf("lookup by the resolver DHCP named: %v, %v", ips, err)
	}
}

// TestResolversFromDHCPv6: routers that advertise addresses may leave the resolvers to DHCPv6.
func TestResolversFromDHCPv6(t *testing.T) {
	need.Long(t, "router and DHCPv6 server, 3 s")
	n := newNetwork(t, "--enable-ra", "--dhcp-range=fd50::,ra-stateless,64,2m", "--log-dhcp")
	s, err := n.open(t, stack.Config{Dynamic: stack.Auto})
	if err != nil {
		t.Fatal(err)
	}
	await(t, s, prefix6[0])
	for end := time.Now().Add(30 * time.Second); !strings.Contains(n.log.String(),
		"DHCPINFORMATION-REQUEST(lan0)"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("DHCPv6 was not asked")
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	need.Long(t, "waits for servers that are not there, 6 s")
	n := newNetwork(t)
	_, err := n.open(t, stack.Config{Dynamic: stack.DHCPv4,
		Addressing: stack.AddressOptions{Timeout: 500 * time.Millisecond}})
	if err == nil || !strings.Contains(err.Error(), "no DHCP server gave an address") ||
		!strings.Contains(err.Error(), "give an address yourself") {
		t.Errorf("error %v", err)
	}
	s, err := n.open(t, stack.Config{Dynamic: stack.SLAAC,
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.9/24")}})
	if err != nil {
		t.Fatalf("a link without routers is no error: %v", err)
	}
	if _, ok := has(s, netip.MustParsePrefix("10.50.0.9/32")); !ok {
		t.Errorf("the static address is not there: %v", s.Addrs())
	}
}
