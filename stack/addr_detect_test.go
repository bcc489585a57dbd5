package stack_test

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// refusing is a link that sends nothing of some protocols, as an interface that is down does.
type refusing struct {
	gstack.LinkEndpoint
	refuses func(tcpip.NetworkProtocolNumber) bool
}

// WritePackets implements gstack.LinkWriter.
func (l refusing) WritePackets(pkts gstack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if l.refuses(pkt.NetworkProtocolNumber) {
			return i, &tcpip.ErrAborted{}
		}
	}
	return l.LinkEndpoint.WritePackets(pkts)
}

// newWithin is stack.New with a time limit.
func newWithin(t *testing.T, link gstack.LinkEndpoint,
	cfg stack.Config) (s *stack.Stack, err error) {
	t.Helper()
	if !within(hangs, func() { s, err = stack.New(link, cfg) }) {
		t.Fatal("New hangs")
	}
	return s, err
}

// TestLinkRefusesProbes: the link's error for a probe is the result of the probe.
func TestLinkRefusesProbes(t *testing.T) {
	for _, c := range []struct {
		name      string
		refuses   func(tcpip.NetworkProtocolNumber) bool
		addresses string
		want, err string // an address in use, or what the error says
	}{
		{"everything", func(tcpip.NetworkProtocolNumber) bool { return true }, "192.0.2.1/24", "",
			"probe for address 192.0.2.1/24"},
		{"IPv6, which the server needs", isIPv6, "2001:db8::1/64", "",
			"probe for address 2001:db8::1/64"},
		{"IPv6, and there is nothing else", isIPv6, "", "", "probe for address fe80::ff:fe00:a/64"},
		{"IPv6, which the server does not need", isIPv6, "192.0.2.1/24", "192.0.2.1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, _ := newStation(t)
			var cfg stack.Config
			cfg.Addressing.DuplicateDetection = 3 * time.Millisecond
			if c.addresses != "" {
				cfg.Addresses = []netip.Prefix{netip.MustParsePrefix(c.addresses)}
			}
			s, err := newWithin(t, refusing{near, c.refuses}, cfg)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %q", err, c.err)
				}
				return
			}
			must(t, err)
			defer s.Close()
			if len(s.Addrs()) != 1 || !hasAddr(s, c.want) {
				t.Errorf("addresses are %v, want %s alone", s.Addrs(), c.want)
			}
		})
	}
}

func isIPv6(p tcpip.NetworkProtocolNumber) bool { return p == header.IPv6ProtocolNumber }

// TestNoARP: a link whose neighbours have no hardware addresses carries IP packets only, and
// duplicate detection is not attempted.
func TestNoARP(t *testing.T) {
	a, b := pipe.New("", "", 1500)
	notIP := func(p tcpip.NetworkProtocolNumber) bool {
		return p != header.IPv4ProtocolNumber && p != header.IPv6ProtocolNumber
	}
	open := func(l gstack.LinkEndpoint, addresses ...netip.Addr) *stack.Stack {
		cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: time.Hour}}
		for _, a := range addresses {
			cfg.Addresses = append(cfg.Addresses, netip.PrefixFrom(a, 24))
		}
		s, err := newWithin(t, refusing{l, notIP}, cfg)
		must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	netpair.CheckLeaks(t)
	server := open(a, netpair.ServerIP4, netpair.ServerIP6)
	client := open(b, netpair.ClientIP4, netpair.ClientIP6)
	for _, ip := range []netip.Addr{netpair.ServerIP4, netpair.ServerIP6} {
		if err := ping(client, ip); err != nil {
			t.Errorf("%v: %v", ip, err)
		}
	}
	if server.Netstack().Stats().ARP.OutgoingRequestsDropped.Value() != 0 {
		t.Error("ARP was tried")
	}
}

// TestNoARPNoDHCP: without a hardware address there is no DHCP.
func TestNoARPNoDHCP(t *testing.T) {
	a, _ := pipe.New("", "", 1500)
	_, err := newWithin(t, a, stack.Config{Dynamic: stack.DHCPv4})
	if err == nil || !strings.Contains(err.Error(), "hardware address") {
		t.Errorf("%v, want an error that speaks of the hardware address", err)
	}
}

// TestNoLink: New without a link fails.
func TestNoLink(t *testing.T) {
	if _, err := newWithin(t, nil, stack.Config{}); err == nil ||
		!strings.Contains(err.Error(), "link is nil") {
		t.Errorf("%v, want an error that says that the link is nil", err)
	}
}

// TestLinkLocalTaken: a reply to detection of the link-local address removes only that address.
func TestLinkLocalTaken(t *testing.T) {
	const linkLocal = "fe80::ff:fe00:a"
	for _, c := range []struct {
		name      string
		addresses []string
		mac       []byte
		says      string
	}{
		{"IPv4 only", []string{"192.0.2.1/24"}, macOther, "02:00:00:00:00:0b"},
		{"both", []string{"192.0.2.1/24", "2001:db8::1/64"}, macOther, "02:00:00:00:00:0b"},
		{"nothing else", nil, macOther, ""},
		{"somebody with our hardware address", []string{"192.0.2.1/24"}, macOurs,
			"our own hardware address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVirtualTime(t)
			near, st := newStation(t)
			st.onFrame(func(f []byte) { // a solicitation for the link-local address
				if len(f) > 78 && f[12] == 0x86 && f[54] == 135 &&
					bytes.Equal(f[62:78], netip.MustParseAddr(linkLocal).AsSlice()) {
					st.send(advertFrame(c.mac, linkLocal))
				}
			})
			var log logged
			cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: time.Second},
				Logger: log.logger(),
				Clock:  v.Clock.Clock()}
			for _, a := range c.addresses {
				cfg.Addresses = append(cfg.Addresses, netip.MustParsePrefix(a))
			}
			s, err := newWithin(t, near, cfg)
			if len(c.addresses) == 0 {
				if !errors.Is(err, stack.ErrDuplicateAddress) {
					t.Errorf("%v, want ErrDuplicateAddress", err)
				}
				return
			}
			must(t, err)
			defer s.Close()
			if len(s.Addrs()) != len(c.addresses) {
				t.Errorf("addresses are %v, want %v", s.Addrs(), c.addresses)
			}
			if log.lines("there is no link-local address") != 1 || log.lines(c.says) == 0 ||
				log.lines(linkLocal) == 0 {
				t.Errorf("the log has no line about %s and %q:\n%s", linkLocal, c.says, &log)
			}
		})
	}
}

// TestLoopbackDetectsNothing: ::1 is in use at once, as on Linux. A probe on lo comes back to its
// sender; one that came back while the stack was closed made netstack panic ("expected DAD state").
func TestLoopbackDetectsNothing(t *testing.T) {
	a, _ := netpair.NewPorts(netpair.Faults{})
	server, err := newWithin(t, a,
		stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: time.Millisecond}})
	must(t, err)
	t.Cleanup(func() { server.Close() })
	for id, nic := range server.Netstack().NICInfo() {
		if nic.Name != "lo" {
			continue
		}
		ep, err := server.Netstack().GetNetworkEndpoint(id, header.IPv6ProtocolNumber)
		if err != nil {
			t.Fatal(err)
		}
		got := ep.(gstack.DuplicateAddressDetector).CheckDuplicateAddress(
			header.IPv6Loopback, func(gstack.DADResult) {})
		if got != gstack.DADDisabled {
			t.Errorf("detection on lo: %v, want disabled", got)
		}
		return
	}
	t.Error("no lo")
}
