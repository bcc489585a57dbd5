package stack_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// dhcpServer gives one address for a short time, from the far end of the cable.
type dhcpServer struct {
	host      *stack.Stack
	conn      *stack.UDPConn
	give      atomic.Pointer[net.IP]
	mute      atomic.Bool
	refuse    atomic.Bool // refuses requests for an address of an earlier lease
	fickle    atomic.Bool // refuses, once, a request for its offer
	twice     atomic.Bool // each answer comes twice
	fallback  string      // the address to give after a DECLINE
	acks      atomic.Int32
	declined  atomic.Int64  // when somebody declined by clock, in ns since 1970
	paused    atomic.Int64  // from then to the next DISCOVER
	confirmed atomic.Int32  // of them, to who asked for an address from before
	mtu       atomic.Uint32 // of option 26; 0: it is left out
	lasts     time.Duration
	clock     clock.Clock
}

func (d *dhcpServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, _, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if m, err := dhcpv4.FromBytes(buf[:n]); err == nil && !d.mute.Load() {
			d.answer(m)
		}
	}
}

func (d *dhcpServer) answer(m *dhcpv4.DHCPv4) {
	if m.MessageType() == dhcpv4.MessageTypeDecline &&
		m.RequestedIPAddress().Equal(*d.give.Load()) {
		d.offer(d.fallback)
		d.declined.Store(d.clock.Now().UnixNano())
	}
	if at := d.declined.Load(); at != 0 && m.MessageType() == dhcpv4.MessageTypeDiscover {
		d.paused.CompareAndSwap(0, d.clock.Now().UnixNano()-at)
	}
	kind := map[dhcpv4.MessageType]dhcpv4.MessageType{
		dhcpv4.MessageTypeDiscover: dhcpv4.MessageTypeOffer,
		dhcpv4.MessageTypeRequest:  dhcpv4.MessageTypeAck,
	}[m.MessageType()]
	if kind == dhcpv4.MessageTypeNone {
		return
	}
	switch {
	case isReboot(m) && d.refuse.Load():
		kind = dhcpv4.MessageTypeNak
	case isReboot(m):
		d.confirmed.Add(1)
	case m.MessageType() == dhcpv4.MessageTypeRequest && d.fickle.Swap(false):
		kind = dhcpv4.MessageTypeNak
	}
	if kind == dhcpv4.MessageTypeAck {
		d.acks.Add(1)
	}
	reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(*d.give.Load()),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithLeaseTime(uint32(d.lasts/time.Second)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(netpair.ServerIP4.AsSlice())))
	if err != nil {
		return
	}
	if mtu := d.mtu.Load(); mtu != 0 {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU,
			[]byte{byte(mtu >> 8), byte(mtu)}))
	}
	to := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
	d.conn.WriteTo(make([]byte, 240), to) // what is no answer is passed over
	d.conn.WriteTo(reply.ToBytes(), to)
	if d.twice.Load() {
		d.conn.WriteTo(reply.ToBytes(), to)
	}
}

// leased makes a server and a client that has got its address from it, in virtual time.
func leased(t *testing.T, lasts time.Duration) (*dhcpServer, *stack.Stack) {
	t.Helper()
	return leasedIn(t, newVirtualTime(t), lasts)
}

// leasedIn is leased in a time that the test has.
func leasedIn(t *testing.T, v virtualTime, lasts time.Duration) (*dhcpServer, *stack.Stack) {
	t.Helper()
	d, client, _ := leasedFull(t, v, lasts)
	return d, client
}

// leasedFull is leasedIn, with the client's link.
func leasedFull(t *testing.T, v virtualTime, lasts time.Duration) (*dhcpServer, *stack.Stack,
	*fullPort) {
	t.Helper()
	c := v.Clock.Clock()
	netpair.CheckLeaks(t)
	a, port := netpair.NewPorts(netpair.Faults{})
	b := &fullPort{Port: port}
	server, err := stack.New(a,
		stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1}, Clock: c,
			Addresses: []netip.Prefix{netip.PrefixFrom(netpair.ServerIP4, 24)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	d := newDHCPServer(t, server, "192.0.2.50", lasts)
	client, err := stack.New(b, stack.WithRenewal(stack.Config{Dynamic: stack.DHCPv4,
		Addressing: stack.AddressOptions{DuplicateDetection: -1, Timeout: hangs},
		Clock:      c}, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return d, client, b
}

// newDHCPServer runs a server on s that gives ip.
func newDHCPServer(t *testing.T, s *stack.Stack, ip string, lasts time.Duration) *dhcpServer {
	t.Helper()
	d := &dhcpServer{lasts: lasts}
	d.start(t, s, ip)
	return d
}

func (d *dhcpServer) start(t *testing.T, s *stack.Stack, ip string) {
	t.Helper()
	var err error
	d.host = s
	d.conn, err = s.ListenUDP("udp4", &net.UDPAddr{Port: 67})
	must(t, err)
	d.offer(ip)
	go d.serve()
}

func (d *dhcpServer) offer(ip string) {
	a := net.ParseIP(ip).To4()
	d.give.Store(&a)
}

func hasAddr(s *stack.Stack, want string) bool {
	return slices.ContainsFunc(s.Addrs(),
		func(p netip.Prefix) bool { return p.Addr().String() == want })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	// no event reports it
	for deadline := time.Now().Add(hangs); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestDHCPRenews(t *testing.T) {
	d, client := leased(t, 2*time.Second)
	if !hasAddr(client, "192.0.2.50") {
		t.Fatalf("addresses %v", client.Addrs())
	}
	eventually(t, "a renewal", func() bool { return d.acks.Load() >= 2 })
	if !hasAddr(client, "192.0.2.50") {
		t.Errorf("the address went with the renewal: %v", client.Addrs())
	}
}

func TestDHCPLeaseRunsOut(t *testing.T) {
	d, client := leased(t, 2*time.Second)
	d.mute.Store(true)
	eventually(t, "the address given up", func() bool { return !hasAddr(client, "192.0.2.50") })
	d.offer("192.0.2.60")
	d.mute.Store(false)
	eventually(t, "another address", func() bool { return hasAddr(client, "192.0.2.60") })
}

// TestDHCPAnswerTwice: the second copy of an answer does not renew the lease later.
func TestDHCPAnswerTwice(t *testing.T) {
	v := newVirtualTime(t)
	d, client := leasedIn(t, v, 20*time.Second)
	v.stop()
	d.twice.Store(true)
	if !v.AdvanceUntil(11*time.Second, func() bool { return d.acks.Load() == 2 }) {
		t.Fatal("not renewed")
	}
	d.mute.Store(true)
	if !v.AdvanceUntil(21*time.Second, func() bool { return !hasAddr(client, "192.0.2.50") }) {
		t.Error("the lease is not over 21 s after it was renewed for 20")
	}
}

// TestDHCPLinkUp: a client that has asked in vain for minutes, at last once a minute, asks at once
// when the link comes up (world 51215 of tests/sim).
func TestDHCPLinkUp(t *testing.T) {
	v := newVirtualTime(t)
	d, client := leasedIn(t, v, 2*time.Second)
	v.stop()
	d.mute.Store(true)
	v.Advance(3 * time.Minute)
	d.mute.Store(false)
	if hasAddr(client, "192.0.2.50") {
		t.Fatal("the lease has not run out")
	}
	client.LinkIsUp()
	if !v.AdvanceUntil(time.Second, func() bool { return hasAddr(client, "192.0.2.50") }) {
		t.Error("no address a second after the link came up")
	}
}

// TestDHCPLinkUpTwice: a link that comes up while the client asks whether its address is good for
// the link of the time before: it asks again.
func TestDHCPLinkUpTwice(t *testing.T) {
	v := newVirtualTime(t)
	d, client := leasedIn(t, v, time.Hour)
	v.stop()
	d.mute.Store(true)
	sent := client.Stats().DHCPSent
	client.LinkIsUp()
	eventually(t, "a question", func() bool { return client.Stats().DHCPSent > sent })
	client.LinkIsUp()
	eventually(t, "another", func() bool { return client.Stats().DHCPSent > sent+1 })
	d.mute.Store(false)
	if !v.AdvanceUntil(5*time.Second, func() bool { return d.confirmed.Load() >= 2 }) ||
		!hasAddr(client, "192.0.2.50") {
		t.Errorf("confirmed %d times, addresses %v", d.confirmed.Load(), client.Addrs())
	}
}

func TestDHCPAddressChanges(t *testing.T) {
	d, client := leased(t, 2*time.Second)
	d.offer("192.0.2.70")
	eventually(t, "the new address", func() bool {
		return hasAddr(client, "192.0.2.70") &&
			!hasAddr(client, "192.0.2.50")
	})
}

// TestDHCPConnections: connections of an address end when another one is in its place, and go on
// when it is given again.
func TestDHCPConnections(t *testing.T) {
	for _, c := range []struct {
		name  string
		mute  bool   // the lease runs out before there is another answer
		offer string // what is given then
		err   error  // of a Read here; nil: the connection goes on
		peer  error  // of its peer's Read; nil: nobody tells it
	}{
		{"renewed with another address", false, "192.0.2.70", syscall.EPIPE, syscall.ECONNRESET},
		{"run out, and another address", true, "192.0.2.70", syscall.EPIPE, nil},
		{"run out, and the same address", true, "192.0.2.50", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVirtualTime(t)
			d, client := leasedIn(t, v, 2*time.Second)
			ln, err := d.host.ListenTCP("tcp4", &net.TCPAddr{Port: 80})
			must(t, err)
			defer ln.Close()
			here, err := client.Dial("tcp", netip.AddrPortFrom(netpair.ServerIP4, 80).String())
			must(t, err)
			defer here.Close()
			there, err := ln.Accept()
			must(t, err)
			defer there.Close()
			v.stop()
			if c.mute {
				d.mute.Store(true)
				v.AdvanceUntil(3*time.Second,
					func() bool { return !hasAddr(client, "192.0.2.50") })
			}
			d.offer(c.offer)
			d.mute.Store(false)
			if !v.AdvanceUntil(10*time.Second, func() bool { return hasAddr(client, c.offer) }) {
				t.Fatalf("addresses %v", client.Addrs())
			}
			read := func(conn net.Conn) error { _, err := conn.Read(make([]byte, 1)); return err }
			if c.err == nil {
				_, err := here.Write([]byte("x"))
				must(t, err)
				must(t, result(t, "Read", background(func() error { return read(there) })))
				return
			}
			err = result(t, "Read", background(func() error { return read(here) }))
			if !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if c.peer == nil {
				return
			}
			err = result(t, "Read", background(func() error { return read(there) }))
			if !errors.Is(err, c.peer) {
				t.Errorf("at the peer: %v, want %v", err, c.peer)
			}
		})
	}
}

// TestDHCPSecondTry: an address that another host has is declined, and a server that refuses its
// own offer is asked again.
func TestDHCPSecondTry(t *testing.T) {
	for _, c := range []struct {
		name        string
		others      []string      // addresses in use on the link
		wait        time.Duration // after a DECLINE
		least, most time.Duration // that it is waited for
		fickle      bool
		want        string
	}{
		{"the address is in use", []string{"192.0.2.50/24"}, 3 * time.Second, 3 * time.Second,
			hangs, false, "192.0.2.60"},
		{"there is no time to wait", []string{"192.0.2.50/24"}, time.Hour, time.Second,
			hangs, false, "192.0.2.60"},
		{"the server takes its offer back", nil, stack.DeclineWait, 0, 0, true, "192.0.2.50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newVirtualTime(t).Clock.Clock()
			netpair.CheckLeaks(t)
			a, b := netpair.NewPorts(netpair.Faults{})
			cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1},
				Clock:     clock,
				Addresses: []netip.Prefix{netip.PrefixFrom(netpair.ServerIP4, 24)}}
			for _, o := range c.others {
				cfg.Addresses = append(cfg.Addresses, netip.MustParsePrefix(o))
			}
			server, err := stack.New(a, cfg)
			must(t, err)
			defer server.Close()
			d := &dhcpServer{lasts: time.Hour, fallback: "192.0.2.60", clock: clock}
			d.fickle.Store(c.fickle)
			d.start(t, server, "192.0.2.50")
			cfg = stack.Config{Dynamic: stack.DHCPv4, Clock: clock,
				Addressing: stack.AddressOptions{
					DuplicateDetection: 2 * time.Second,
					Timeout:            hangs,
				}}
			client, err := stack.New(b, stack.WithDeclineWait(cfg, c.wait))
			must(t, err)
			defer client.Close()
			if paused := time.Duration(d.paused.Load()); paused < c.least || paused > c.most {
				t.Errorf("%v between DECLINE and DISCOVER, want %v to %v", paused, c.least, c.most)
			}
			if got := client.Addrs(); !hasAddr(client, c.want) || len(c.others) > 0 &&
				hasAddr(client, "192.0.2.50") || d.fickle.Load() {
				t.Errorf("addresses %v, want %s", got, c.want)
			}
		})
	}
}

// TestDHCPTinyLease: a lease for no time at all is renewed once a minute, not as fast as the server
// answers.
func TestDHCPTinyLease(t *testing.T) {
	v := newVirtualTime(t)
	netpair.CheckLeaks(t)
	a, b := netpair.NewPorts(netpair.Faults{})
	server, err := stack.New(a,
		stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1},
			Clock:     v.Clock.Clock(),
			Addresses: []netip.Prefix{netip.PrefixFrom(netpair.ServerIP4, 24)}})
	must(t, err)
	defer server.Close()
	d := newDHCPServer(t, server, "192.0.2.50", 0)
	client, err := stack.New(b, stack.Config{Dynamic: stack.DHCPv4, Clock: v.Clock.Clock(),
		Addressing: stack.AddressOptions{DuplicateDetection: -1, Timeout: hangs}})
	must(t, err)
	defer client.Close()
	v.stop()
	v.Advance(50 * time.Second)
	if n, sent := d.acks.Load(), client.Stats().DHCPSent; n != 1 || sent > 4 ||
		!hasAddr(client, "192.0.2.50") {
		t.Errorf("%d leases, %d messages, addresses %v", n, sent, client.Addrs())
	}
	if !v.AdvanceUntil(15*time.Second, func() bool { return d.acks.Load() == 2 }) {
		t.Error("not renewed after a minute")
	}
}
