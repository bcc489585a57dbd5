package stack

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack/packets"
)

// anycastHosts returns a server that has two prefixes, and a client with a route to them; fast says
// whether frames may take the fast path.
func anycastHosts(t *testing.T, fast bool) (server, client *Stack) {
	t.Helper()
	a, b := wire.Pair()
	whole := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("2001:db8:1::/48")}
	var all [2]*Stack
	for i, w := range []wire.Wire{a, b} {
		nic, err := simnic.New(simnic.Config{Seed: uint64(i + 1)})
		must(t, err)
		t.Cleanup(func() { nic.Close() })
		must(t, nic.ConnectWire(w))
		cfg := Config{
			NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
				Facts: dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: nic.MTU()}}},
			Addresses: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1))},
			Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
			NoFastPath: !fast,
		}
		if i == 0 {
			cfg = cfg.WithLocal(whole...)
		} else {
			cfg.Routes = []Route{
				{Destination: whole[0], Gateway: netip.MustParseAddr("192.0.2.1")},
				{Destination: netip.MustParsePrefix("198.51.101.0/24"),
					Gateway: netip.MustParseAddr("192.0.2.1")},
				{Destination: whole[1], Gateway: netip.MustParseAddr("2001:db8::1")}}
		}
		all[i], err = Open(t.Context(), cfg)
		must(t, err)
		t.Cleanup(func() { all[i].Close() })
	}
	return all[0], all[1]
}

// anycast has addresses of the prefixes, the first and the last among them.
var anycast = []string{"198.51.100.0", "198.51.100.7", "198.51.100.255", "2001:db8:1::",
	"2001:db8:1:ffff::7"}

// TestLocalPrefixes: what is sent to any address of a prefix arrives, in one piece or in fragments,
// and is answered from there; connections have it as their own; what we begin ourselves leaves from
// an address of ours; other addresses are not ours.
func TestLocalPrefixes(t *testing.T) {
	for _, fast := range []bool{true, false} {
		t.Run(fmt.Sprintf("fast path %v", fast), func(t *testing.T) {
			server, client := anycastHosts(t, fast)
			pc, err := server.ListenUDP("udp", &net.UDPAddr{Port: 53})
			must(t, err)
			go func() {
				var b [8192]byte
				for {
					n, from, err := pc.ReadFrom(b[:])
					if err != nil {
						return
					}
					pc.WriteTo(b[:n], from)
				}
			}()
			c, err := client.ListenUDP("udp", nil)
			must(t, err)
			echoes(t, c)
			must(t, pc.Close())
			v := servePackets(t, server, func(_ int, ps []packets.Packet) {
				for i := range ps {
					ps[i].Reply = ps[i].Payload
				}
			})
			echoes(t, c)
			must(t, v.Close())
			v.wants(t, net.ErrClosed)
			bound, err := server.ListenUDP("udp4", &net.UDPAddr{Port: 53,
				IP: net.ParseIP("198.51.100.9")})
			must(t, err)
			defer bound.Close()
			_, err = bound.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP("192.0.2.2"),
				Port: c.LocalAddr().(*net.UDPAddr).Port})
			must(t, err)
			must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			if _, from, err := c.ReadFromUDP(make([]byte, 1)); err != nil ||
				from.IP.String() != "198.51.100.9" {
				t.Errorf("sent from 198.51.100.9, arrived from %v, %v", from, err)
			}

			l, err := server.Listen("tcp", ":80")
			must(t, err)
			defer l.Close()
			for _, at := range anycast {
				d, err := client.DialTimeout("tcp", net.JoinHostPort(at, "80"), time.Minute)
				must(t, err)
				a, err := l.Accept()
				must(t, err)
				if got := a.LocalAddr().(*net.TCPAddr).IP; !got.Equal(net.ParseIP(at)) {
					t.Errorf("connected to %s, accepted at %s", at, got)
				}
				a.Close()
				d.Close()
			}
			other, err := client.Listen("tcp", ":81")
			must(t, err)
			defer other.Close()
			for _, at := range []string{"192.0.2.2", "2001:db8::2"} {
				d, err := server.DialTimeout("tcp", net.JoinHostPort(at, "81"), time.Minute)
				must(t, err)
				if from := d.LocalAddr().String(); !strings.HasPrefix(from, "192.0.2.1:") &&
					!strings.HasPrefix(from, "[2001:db8::1]:") {
					t.Errorf("dialled from %s", from)
				}
				d.Close()
			}
			for a, want := range map[string]bool{"198.51.100.3": true, "198.51.101.3": false,
				"2001:db8:2::": false} {
				if got := server.owns(toAddress(netip.MustParseAddr(a))); got != want {
					t.Errorf("%s is ours: %v", a, got)
				}
			}
			if _, err := server.ListenUDP("udp4", &net.UDPAddr{
				IP: net.ParseIP("198.51.101.9")}); err == nil {
				t.Error("bound to an address that is not ours")
			}
		})
	}
}

// echoes asks at all addresses.
func echoes(t *testing.T, c *UDPConn) {
	t.Helper()
	for _, n := range []int{5, 5000} {
		for range 3 { // netstack, then header templates
			for _, at := range anycast {
				b := bytes.Repeat([]byte{9}, n)
				if got := ask(t, c, at, b); got != string(b) {
					t.Errorf("%s: %d bytes of %d", at, len(got), n)
				}
			}
		}
	}
}

// TestLocalPrefixesRefused: what cannot be meant is refused in a sentence.
func TestLocalPrefixesRefused(t *testing.T) {
	base := Config{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}
	for p, want := range map[string]string{
		"198.51.100.7/24": "first address", "224.0.0.0/8": "unicast", "127.0.0.0/8": "unicast",
		"fe80::/64": "unicast", "192.0.2.0/25": "subnet", "::ffff:198.51.100.0/120": "first",
	} {
		err := base.WithLocal(netip.MustParsePrefix(p)).Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", p, err, want)
		}
	}
	must(t, base.WithLocal(netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.9/32"), netip.MustParsePrefix("2001:db8::/48")).Validate())
}
