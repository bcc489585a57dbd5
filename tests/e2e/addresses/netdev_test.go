package addresses

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// Linux's own addresses on the port.
var linux4, linux6 = netip.MustParsePrefix("10.50.0.5/24"), netip.MustParsePrefix("fd50::5/64")

const netdev = "port0"

// machine is a computer whose port belongs to that NIC: a namespace in which Linux has the port's
// netdev, with addresses and a default route for each IP version.
func (n *network) machine(t *testing.T) *lab.Net {
	t.Helper()
	return n.machineWith(t, []netip.Prefix{linux4, linux6}, router4.Addr(), router6.Addr())
}

// machineWith makes a machine whose Linux has these addresses and routers.
func (n *network) machineWith(t *testing.T, addrs []netip.Prefix,
	over ...netip.Addr) *lab.Net {
	t.Helper()
	m, err := lab.New("machine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	err = m.Do(func() error {
		tap, err := wire.OpenTAP(netdev)
		if err != nil {
			return err
		}
		if err := n.nic.ConnectNetdev(tap); err != nil {
			return err
		}
		if err := lab.Up(netdev, lab.Setup{MAC: n.nic.MAC(),
			Addresses: addrs}); err != nil {
			return err
		}
		return routers(over...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// onLink holds RTNH_F_ONLINK of linux/rtnetlink.h, which package netlink has on Linux only.
const onLink = 4

// routers makes default routes of the calling thread's namespace, over routers on the link.
func routers(addrs ...netip.Addr) error {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		all := &net.IPNet{IP: make(net.IP, len(a.AsSlice())),
			Mask: make(net.IPMask, len(a.AsSlice()))}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all,
			Gw: a.AsSlice(), Flags: onLink}); err != nil {
			return fmt.Errorf("default route over %s: %w", a, err)
		}
	}
	return nil
}

// openOn opens a stack on the NIC as a process of the machine.
func (n *network) openOn(t *testing.T, m *lab.Net, cfg stack.Config) (s *stack.Stack, err error) {
	t.Helper()
	cfg.NIC = dv.NIC{
		Model: dv.Model{
			Kernel: kernel.Opener(n.nic),
			Facts:  dv.PortFacts{Name: "sim", Netdev: netdev, MAC: n.nic.MAC(), MTU: n.nic.MTU()},
		},
	}
	err = m.Do(func() (err error) {
		s, err = stack.Open(t.Context(), cfg)
		return err
	})
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

// lacking is an address without its prefix length.
func lacking(a string) netip.Prefix { return netip.PrefixFrom(netip.MustParseAddr(a), -1) }

// TestAddressOfTheSubnet: a slice that is given only an address uses the subnet of Linux's netdev,
// and its routers.
func TestAddressOfTheSubnet(t *testing.T) {
	n := newNetwork(t)
	m := n.machine(t)
	s, err := n.openOn(t, m, stack.Config{Addresses: []netip.Prefix{lacking("10.50.0.9"),
		lacking("fd50::9")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10.50.0.9/24", "fd50::9/64"} {
		p := netip.MustParsePrefix(want)
		if !slices.Contains(s.Addrs(), p) {
			t.Errorf("%v lacks %v", s.Addrs(), p)
		}
		dials(t, n, s, p.Addr())
	}
}

// TestAddressWithoutSubnet: on Linux's netdev, too, addresses have no subnet and the routers are on
// the link, as at many clouds. The slice names its routers, or only its addresses.
func TestAddressWithoutSubnet(t *testing.T) {
	for name, cfg := range map[string]stack.Config{
		"bare": {Addresses: []netip.Prefix{lacking("10.50.0.9"), lacking("fd50::9")}},
		"gateways": {Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.9/32"),
			netip.MustParsePrefix("fd50::9/128")},
			Gateways: []netip.Addr{onLink4.Addr(), onLink6.Addr()}},
		"routes": {Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.9/32"),
			netip.MustParsePrefix("fd50::9/128")},
			Routes: []stack.Route{
				{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: onLink4.Addr()},
				{Destination: netip.MustParsePrefix("::/0"), Gateway: onLink6.Addr()}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			m := n.machineWith(t, []netip.Prefix{netip.MustParsePrefix("10.50.0.5/32"),
				netip.MustParsePrefix("fd50::5/128")}, onLink4.Addr(), onLink6.Addr())
			s, err := n.openOn(t, m, cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"10.50.0.9/32", "fd50::9/128"} {
				p := netip.MustParsePrefix(want)
				if !slices.Contains(s.Addrs(), p) {
					t.Errorf("%v lacks %v", s.Addrs(), p)
				}
				dials(t, n, s, p.Addr())
			}
		})
	}
}

// TestNetdevFillsGaps: the DHCP server gives the address. It names no router, so that Linux's is
// used.
func TestNetdevFillsGaps(t *testing.T) {
	need.Long(t, "networks with servers of their own, 3 s")
	n := newNetwork(t, "--dhcp-range=10.50.0.100,10.50.0.110,2m", "--dhcp-option=3")
	m := n.machine(t)
	s, err := n.openOn(t, m, stack.Config{Dynamic: stack.Auto})
	if err != nil {
		t.Fatal(err)
	}
	addr, ok := has(s, netip.MustParsePrefix("10.50.0.96/28"))
	if !ok {
		t.Fatalf("addresses %v", s.Addrs())
	}
	dials(t, n, s, addr)
}

// TestNotLinuxAddress: an address that Linux has on the port is refused before anything is opened,
// and missing information is reported.
func TestNotLinuxAddress(t *testing.T) {
	n := newNetwork(t)
	m := n.machine(t)
	for _, c := range []struct {
		addr netip.Prefix
		dup  bool
		err  string
	}{
		{linux4, true, "address 10.50.0.5 is Linux's own on port0"},
		{lacking("fd50::5"), true, "address fd50::5 is Linux's own on port0"},
		{lacking("192.0.2.9"), false,
			"address 192.0.2.9 has no prefix length; write the subnet's, for example " +
				"192.0.2.9/24: port0 has no address in its network: [fd50::/64 10.50.0.0/24]"},
	} {
		_, err := n.openOn(t, m, stack.Config{Addresses: []netip.Prefix{c.addr}})
		if err == nil || !strings.Contains(err.Error(), c.err) ||
			errors.Is(err, stack.ErrDuplicateAddress) != c.dup {
			t.Errorf("%v: %v, want %q", c.addr, err, c.err)
		}
	}
	_, err := n.openOn(t, m, stack.Config{Dynamic: stack.Auto,
		Addressing: stack.AddressOptions{Timeout: 100 * time.Millisecond}})
	if !errors.Is(err, stack.ErrNoLease) || !strings.Contains(err.Error(),
		"give an address yourself in one of the networks of port0, [fd50::/64 10.50.0.0/24]") {
		t.Errorf("nobody gives an address: %v", err)
	}
	n.nic.SetLink(false)
	_, err = n.openOn(t, m, stack.Config{Dynamic: stack.Auto,
		Addressing: stack.AddressOptions{Timeout: 100 * time.Millisecond}})
	if err == nil || !strings.Contains(err.Error(), "the port's link is down") {
		t.Errorf("the link is down: %v", err)
	}
}
