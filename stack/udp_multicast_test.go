package stack_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

var (
	mdns4 = net.IPv4(224, 0, 0, 251)
	mdns6 = net.ParseIP("ff02::fb")
)

// The reports of RFC 3376 section 4.2 and RFC 3810 section 5.2 about one group without sources:
// from the IPv4 options, and from the hop-by-hop header, on. x stands for what is zeroed before
// comparing: the checksum of MLD, which depends on our link-local address.
var reports = []struct {
	what   string
	group  net.IP
	record byte // 4: TO_EX, joined; 3: TO_IN, left
	bytes  []byte
}{
	{"IGMPv3 join", mdns4, 4, []byte{
		0x94, 4, 0, 0, // router alert (RFC 2113)
		0x22, 0, 0xf9, 0x02, 0, 0, 0, 1, // type, reserved, checksum, reserved, one record
		4, 0, 0, 0, 224, 0, 0, 251,
	}},
	{"IGMPv3 leave", mdns4, 3, []byte{
		0x94, 4, 0, 0,
		0x22, 0, 0xfa, 0x02, 0, 0, 0, 1,
		3, 0, 0, 0, 224, 0, 0, 251,
	}},
	{"MLDv2 join", mdns6, 4, []byte{
		58, 0, 5, 2, 0, 0, 1, 0, // next header ICMPv6, router alert (RFC 2711), padding
		143, 0, 0, 0, 0, 0, 0, 1,
		4, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb,
	}},
	{"MLDv2 leave", mdns6, 3, []byte{
		58, 0, 5, 2, 0, 0, 1, 0,
		143, 0, 0, 0, 0, 0, 0, 1,
		3, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb,
	}},
}

// reporter records the frames that a stack sends to the groups of multicast routers.
type reporter struct {
	mu     sync.Mutex
	frames [][]byte
	more   chan struct{}
}

func (r *reporter) tap(end int, frame []byte) bool {
	igmp := bytes.HasPrefix(frame, []byte{0x01, 0x00, 0x5e, 0, 0, 22}) // 224.0.0.22
	mld := bytes.HasPrefix(frame, []byte{0x33, 0x33, 0, 0, 0, 22})     // ff02::16
	// IGMP, hop-by-hop options
	if end == 0 && (igmp && frame[14+9] == 2 || mld && frame[14+6] == 0) {
		r.mu.Lock()
		r.frames = append(r.frames, bytes.Clone(frame))
		r.mu.Unlock()
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
	return false
}

// find removes and returns the first report that contains the bytes, or nil.
func (r *reporter) find(want []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.frames {
		if f[12] == 0x86 {
			clear(f[14+40+8+2:][:2]) // MLD's checksum
		}
		if bytes.HasSuffix(f, want) {
			return f
		}
	}
	return nil
}

// await waits until find returns a report.
func (r *reporter) await(t *testing.T, what string, want []byte) []byte {
	t.Helper()
	for late := time.After(hangs); ; {
		if f := r.find(want); f != nil {
			return f
		}
		select {
		case <-r.more:
		case <-late:
			t.Fatalf("%s: no report ends in\n%x\nof\n%x", what, want, r.frames)
		}
	}
}

// TestGroupReports joins groups and leaves them in every possible way, and requires the reports to
// routers to match byte for byte.
func TestGroupReports(t *testing.T) {
	for name, leave := range map[string]func(*stack.Stack, *stack.UDPConn, net.Addr) error{
		"LeaveGroup": func(_ *stack.Stack, c *stack.UDPConn,
			g net.Addr) error {
			return c.LeaveGroup(nil, g)
		},
		"Close": func(_ *stack.Stack, c *stack.UDPConn,
			_ net.Addr) error {
			return c.Close()
		},
		"stack's Close": func(s *stack.Stack, _ *stack.UDPConn,
			_ net.Addr) error {
			return s.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVirtualTime(t)
			for i := 0; i < len(reports); i += 2 {
				r := &reporter{more: make(chan struct{}, 1)}
				server, _ := netpair.New(t, netpair.Faults{Tap: r.tap}, netpair.Both(v.option))
				c, err := server.ListenUDP("udp", nil)
				must(t, err)
				joined, left := reports[i], reports[i+1]
				g := &net.UDPAddr{IP: joined.group}
				must(t, c.JoinGroup(nil, g))
				f := r.await(t, joined.what, joined.bytes)
				if ttl := map[byte]byte{0x08: f[14+8], 0x86: f[14+7]}[f[12]]; ttl != 1 {
					t.Errorf("%s has TTL %d: it must not leave the link", joined.what, ttl)
				}
				if f := r.find(left.bytes); f != nil {
					t.Errorf("%s before anybody left: %x", left.what, f)
				}
				must(t, leave(server, c, g))
				r.await(t, left.what, left.bytes)
			}
		})
	}
}

// TestGroupIsLeftByTheLastSocket: two sockets of one group; the stack leaves it when the second
// closes.
func TestGroupIsLeftByTheLastSocket(t *testing.T) {
	r := &reporter{more: make(chan struct{}, 1)}
	server, client := netpair.New(t, netpair.Faults{Tap: r.tap},
		netpair.Both(newVirtualTime(t).option))
	g := &net.UDPAddr{IP: mdns4, Port: 5353}
	first, err := server.ListenMulticastUDP("udp4", nil, g)
	must(t, err)
	second, err := server.ListenMulticastUDP("udp4", nil, g)
	must(t, err)
	must(t, first.Close())
	from, err := client.ListenUDP("udp4", nil)
	must(t, err)
	_, err = from.WriteTo([]byte("still there?"), g)
	must(t, err)
	must(t, result(t, "ReadFrom", background(func() error {
		_, _, err := second.ReadFrom(make([]byte, 64))
		return err
	})))
	if f := r.find(reports[1].bytes); f != nil {
		t.Fatalf("the group was left while a socket was in it: %x", f)
	}
	must(t, second.Close())
	r.await(t, "IGMPv3 leave", reports[1].bytes)
}

// TestGroupIsSentToInTheOrderOfTheConfiguration, whichever address is found free first: from the
// first of IPv4 and, of those that are as good by RFC 6724, the last of IPv6, as Linux does.
func TestGroupIsSentToInTheOrderOfTheConfiguration(t *testing.T) {
	for round := range 6 {
		server, client := netpair.New(t, netpair.Faults{}, netpair.Both(func(cfg *stack.Config) {
			for _, more := range []string{"192.0.2.%d/24", "2001:db8::%d/64"} {
				for i := range 3 {
					first := cfg.Addresses[0].Addr().As4()
					p := netip.MustParsePrefix(fmt.Sprintf(more, 10*int(first[3])+i))
					cfg.Addresses = append(cfg.Addresses, p)
				}
			}
			if round%2 == 1 { // IPv4 last
				slices.SortStableFunc(cfg.Addresses, func(a, b netip.Prefix) int {
					return b.Addr().BitLen() - a.Addr().BitLen()
				})
			}
		}))
		for _, tt := range []struct {
			network string
			group   net.IP
			want    netip.Addr
		}{
			{"udp4", mdns4, netpair.ClientIP4},
			{"udp6", net.ParseIP("ff0e::fb"), netip.MustParseAddr("2001:db8::22")},
		} {
			g := &net.UDPAddr{IP: tt.group, Port: 5353}
			to, err := server.ListenMulticastUDP(tt.network, nil, g)
			must(t, err)
			from, err := client.ListenUDP(tt.network, nil)
			must(t, err)
			_, err = from.WriteTo([]byte("from where?"), g)
			must(t, err)
			must(t, to.SetReadDeadline(time.Now().Add(hangs)))
			_, sender, err := to.ReadFrom(make([]byte, 64))
			must(t, err)
			if got := sender.(*net.UDPAddr).AddrPort().Addr().Unmap(); got != tt.want {
				t.Errorf("%s is sent to from %v, want %v", tt.group, got, tt.want)
			}
		}
	}
}

// TestGroupRefusals passes invalid groups, interfaces and TTLs, and uses closed sockets.
func TestGroupRefusals(t *testing.T) {
	server, _ := netpair.New(t, netpair.Faults{})
	c, err := server.ListenUDP("udp4", nil)
	must(t, err)
	closed, err := server.ListenUDP("udp4", nil)
	must(t, err)
	must(t, closed.Close())
	group, own := &net.UDPAddr{IP: mdns4}, &net.Interface{Name: server.Name()}
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"another interface", c.JoinGroup(&net.Interface{Name: "eth7"}, group), syscall.ENODEV},
		{"another interface to listen on",
			second(server.ListenMulticastUDP("udp4", &net.Interface{Name: "eth7"}, group)),
			syscall.ENODEV},
		{"our interface", c.JoinGroup(own, group), nil},
		{"twice", c.JoinGroup(nil, group), syscall.EADDRINUSE},
		{"leave", c.LeaveGroup(own, &net.IPAddr{IP: mdns4}), nil},
		{"leave twice", c.LeaveGroup(nil, group), syscall.EADDRNOTAVAIL},
		{"no group", c.JoinGroup(nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}), syscall.EINVAL},
		{"broadcast", c.JoinGroup(nil, &net.UDPAddr{IP: net.IPv4bcast}), syscall.EINVAL},
		{"TTL 0", c.SetMulticastTTL(0), syscall.EINVAL},
		{"TTL 256", c.SetMulticastTTL(256), syscall.EINVAL},
		{"TTL -2", c.SetMulticastTTL(-2), syscall.EINVAL},
		{"join closed", closed.JoinGroup(nil, group), net.ErrClosed},
		{"leave closed", closed.LeaveGroup(nil, group), net.ErrClosed},
		{"TTL of closed", closed.SetMulticastTTL(1), net.ErrClosed},
		{"loopback of closed", closed.SetMulticastLoopback(true), net.ErrClosed},
	} {
		var op *net.OpError
		if !errors.Is(tt.err, tt.want) || tt.err != nil && !errors.As(tt.err, &op) {
			t.Errorf("%s: %v, want %v in an OpError", tt.name, tt.err, tt.want)
		}
	}
	for _, g := range []net.Addr{nil, &net.UDPAddr{}, &net.TCPAddr{IP: mdns4},
		&net.UDPAddr{IP: mdns6}, &net.UDPAddr{IP: mdns4, Zone: "eth7"}} {
		if c.JoinGroup(nil, g) == nil {
			t.Errorf("joined %v", g)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestGroupsWhileClosing joins and leaves while the socket, or the stack, is being closed.
func TestGroupsWhileClosing(t *testing.T) {
	for _, whole := range []bool{false, true} {
		for range 20 {
			server, _ := netpair.New(t, netpair.Faults{})
			c, err := server.ListenUDP("udp", nil)
			must(t, err)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					g := &net.UDPAddr{IP: net.IPv4(224, 0, 1, byte(i))}
					for {
						if err := c.JoinGroup(nil, g); errors.Is(err, net.ErrClosed) {
							return
						} else if err != nil {
							t.Error(err)
							return
						}
						if err := c.LeaveGroup(nil, g); errors.Is(err, net.ErrClosed) {
							return
						} else if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			if whole {
				must(t, server.Close())
			} else {
				must(t, c.Close())
			}
			wg.Wait()
		}
	}
}

// TestControlMessagesOfOthers: control messages contain the destination for programs on x/net's
// PacketConn, too.
func TestControlMessagesOfOthers(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	g := &net.UDPAddr{IP: mdns4, Port: 5353}
	c, err := server.ListenMulticastUDP("udp4", nil, g)
	must(t, err)
	if err := ipv4.NewPacketConn(c).JoinGroup(nil, g); err == nil {
		t.Error("x/net's PacketConn works: the package comment says it does not")
	}
	must(t, c.SetControl(true))
	from, err := client.ListenUDP("udp4", nil)
	must(t, err)
	_, err = from.WriteToUDPAddrPort([]byte("?"), netip.MustParseAddrPort("224.0.0.251:5353"))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(hangs)))
	b, oob := make([]byte, 8), make([]byte, 64)
	_, n, _, _, err := c.ReadMsgUDP(b, oob)
	must(t, err)
	var cm ipv4.ControlMessage
	must(t, cm.Parse(oob[:n]))
	if got := fmt.Sprint(cm.Dst, cm.IfIndex); got != "224.0.0.251 1" {
		t.Errorf("destination and interface are %s", got)
	}
}
