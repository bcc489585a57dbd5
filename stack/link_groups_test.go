package stack_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// switched is a stack behind an e-switch, 2001:db8::1 and 192.0.2.1, and one on a port of its own.
func switched(t *testing.T, fn simnic.Function, registered bool) (server, client *stack.Stack,
	nic *simnic.NIC) {
	t.Helper()
	clock := newVirtualTime(t).Clock.Clock()
	netpair.CheckLeaks(t)
	nic, err := simnic.New(simnic.Config{Name: "sim_vf", Netdev: "vf", Seed: 1, Function: fn,
		Clock: clock})
	must(t, err)
	t.Cleanup(func() { nic.Close() })
	other := cardWith(t, simnic.Config{Name: "sim_b", Seed: 2, Clock: clock})
	near, far := wire.Pair()
	must(t, nic.ConnectWire(near))
	must(t, other.ConnectWire(far))
	open := func(n *simnic.NIC, addresses ...string) *stack.Stack {
		cfg := onCard(n, 1, addresses...)
		quick(&cfg)
		if n == nic && registered {
			cfg.Driver = func(d *dv.Config) {
				d.Addresses = func() (dv.AddressList, error) {
					return kernel.New(n, kernel.Config{}).OpenPacketSocket()
				}
			}
		}
		s, err := stack.Open(context.Background(), cfg)
		need.That(t, "simnic", onlyUnsupported(err))
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	return open(nic, "192.0.2.1/24", "2001:db8::1/64"),
		open(other, "192.0.2.2/24", "2001:db8::2/64"), nic
}

// functions are those whose e-switch follows their lists.
var functions = map[string]simnic.Function{
	"PF with SR-IOV": {Kind: simnic.SwitchPF},
	"VF":             {Kind: simnic.VF},
	"trusted VF":     {Kind: simnic.VF, Trusted: true},
}

// TestNeighbourDiscoveryBehindSwitch: solicitations are sent to a group of our address. Unless the
// port lists the group and our MAC, we are unreachable.
func TestNeighbourDiscoveryBehindSwitch(t *testing.T) {
	for name, fn := range functions {
		for _, registered := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, registered %v", name, registered), func(t *testing.T) {
				server, client, nic := switched(t, fn, registered)
				for _, addr := range []string{"2001:db8::1", "192.0.2.1"} {
					limit := 20 * time.Second
					if !registered {
						limit = 300 * time.Millisecond
					}
					l, err := server.Listen("tcp", net.JoinHostPort(addr, "80"))
					must(t, err)
					ctx, cancel := nic.Config().Clock.WithTimeout(context.Background(), limit)
					c, err := client.DialContext(ctx, "tcp", l.Addr().String())
					cancel()
					if (err == nil) != registered {
						t.Errorf("dial %s: %v", addr, err)
					}
					if err == nil {
						c.Close()
					}
					l.Close()
				}
				if n := nic.Counters().Drops.SwitchFilter; n == 0 && !registered {
					t.Error("the e-switch dropped nothing")
				}
			})
		}
	}
}

// TestGroupsBehindSwitch: datagrams of a group arrive from when sockets join until they leave or
// close.
func TestGroupsBehindSwitch(t *testing.T) {
	for name, fn := range functions {
		t.Run(name, func(t *testing.T) {
			server, client, nic := switched(t, fn, true)
			to, err := server.ListenUDP("udp4", nil)
			must(t, err)
			from, err := client.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1),
				Port: to.LocalAddr().(*net.UDPAddr).Port})
			must(t, err)
			fence := func() { // what the client has sent before was switched
				_, err := from.Write([]byte("fence"))
				must(t, err)
				_, _, err = to.ReadFrom(make([]byte, 8))
				must(t, err)
			}
			for _, group := range []string{"239.1.2.3", "ff15::77"} {
				gaddr := &net.UDPAddr{IP: net.ParseIP(group), Port: 9000}
				passes := func() bool { // reports of the client's own do not
					fence()
					before := nic.Counters().Slice.RxMulticast
					out, err := client.DialUDP("udp", nil, gaddr)
					must(t, err)
					defer out.Close()
					_, err = out.Write([]byte("to all"))
					must(t, err)
					fence()
					return nic.Counters().Slice.RxMulticast > before
				}
				if passes() {
					t.Errorf("%s passes before anyone has joined", group)
				}
				in, err := server.ListenMulticastUDP("udp", nil, gaddr)
				must(t, err)
				eventually(t, group+" to pass once a socket has joined", passes)
				got := ""
				must(t, result(t, "Read", background(func() error {
					b := make([]byte, 64)
					n, err := in.Read(b)
					got = string(b[:n])
					return err
				})))
				if got != "to all" {
					t.Errorf("read %q", got)
				}
				must(t, in.LeaveGroup(nil, gaddr))
				if passes() {
					t.Errorf("%s passes after the socket has left", group)
				}
				must(t, in.JoinGroup(nil, gaddr))
				eventually(t, group+" to pass after a second join", passes)
				must(t, in.Close())
				eventually(t, group+" to be left", func() bool { return !passes() })
			}
		})
	}
}

// TestGroupFramesOfOtherLinks: what comes for our address in a frame to a group or to all is not
// answered (RFC 1122 section 3.2.2, RFC 4443 section 2.4), on links too that do not tell netstack
// how a frame was addressed.
func TestGroupFramesOfOtherLinks(t *testing.T) {
	groups := map[string]net.HardwareAddr{
		"all":     {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a group": {0x33, 0x33, 0, 0, 0, 1},
	}
	for name, group := range groups {
		t.Run(name, func(t *testing.T) {
			var altered atomic.Bool
			var mu sync.Mutex
			ports, answers := map[uint16]bool{}, 0 // ports of what was altered
			server, client := netpair.New(t, netpair.Faults{Tap: func(end int, f []byte) bool {
				at, proto := 34, f[23]
				if f[12] == 0x86 {
					at, proto = 54, f[20]
				}
				transport := f[13] != 6 && (proto == 6 || proto == 17) // neither ARP nor ICMP
				mu.Lock()
				defer mu.Unlock()
				switch {
				case end == 1 && transport && altered.Load():
					ports[binary.BigEndian.Uint16(f[at:])] = true
					copy(f, group)
				case end == 0 && transport && ports[binary.BigEndian.Uint16(f[at+2:])]:
					answers++
				case end == 0 && (proto == 1 || proto == 58 && f[at] < 128): // errors
					answers++
				}
				return false
			}})
			for _, ip := range []netip.Addr{netpair.ServerIP4, netpair.ServerIP6} {
				l, err := server.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
				must(t, err)
				to := l.Addr().String()
				ask := func() {
					for _, tcp := range []string{to, net.JoinHostPort(ip.String(), "9")} {
						c, err := client.DialTimeout("tcp", tcp, 10*time.Millisecond)
						if err == nil {
							c.Close()
							t.Error("connected")
						}
					}
					u, err := client.Dial("udp", net.JoinHostPort(ip.String(), "9"))
					must(t, err)
					_, err = u.Write([]byte("x"))
					must(t, err)
					must(t, u.Close())
				}
				barrier := func() {
					c, err := client.Dial("tcp", to)
					must(t, err)
					must(t, c.Close())
				}
				barrier() // the neighbours know each other
				altered.Store(true)
				ask()
				altered.Store(false)
				barrier()
			}
			mu.Lock()
			defer mu.Unlock()
			if answers != 0 || len(ports) < 6 {
				t.Errorf("%d answers to what came from %d ports", answers, len(ports))
			}
		})
	}
}
