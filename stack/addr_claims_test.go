package stack_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// garpOf is an announcement of 192.0.2.1 as ours: a gratuitous request.
func garpOf(mac []byte, ip string) []byte {
	return arpFrame(1, mac, ip, make([]byte, 6), ip)
}

// TestConflicts: another host that uses an address of ours is answered by an announcement, at most
// once in 10 s, and every conflict is counted. A request alone is no conflict.
func TestConflicts(t *testing.T) {
	const v4, v6 = "192.0.2.1", "2001:db8::1"
	ask := func(from string) []byte { // a solicitation for our address, by whom its option says
		return icmp6Frame(macOther, from, "ff02::1:ff00:1", []byte{135, 0, 0, 0, 0, 0, 0, 0},
			netip.MustParseAddr(v6).AsSlice(), []byte{1, 1}, macOther)
	}
	// to all nodes, from the address; the rest is up to netstack's announcement
	our6 := advertFrame(macOurs, v6)[:54]
	for _, c := range []struct {
		name      string
		frame     []byte
		defence   []byte // a frame of ours begins so
		conflicts uint64
	}{
		{"gratuitous ARP", garpOf(macOther, v4), garpOf(macOurs, v4), 5},
		{"ARP reply", arpFrame(2, macOther, v4, macOurs, "192.0.2.9"), garpOf(macOurs, v4), 5},
		{"ARP request from it", arpFrame(1, macOther, v4, make([]byte, 6), "192.0.2.9"),
			garpOf(macOurs, v4), 5},
		{"ARP probe", arpFrame(1, macOther, "0.0.0.0", make([]byte, 6), v4), nil, 0},
		{"ARP request for it", arpFrame(1, macOther, "192.0.2.9", make([]byte, 6), v4), nil, 0},
		{"somebody else's ARP", garpOf(macOther, "192.0.2.9"), nil, 0},
		{"ARP cut short", garpOf(macOther, v4)[:41], nil, 0},
		{"neighbour advertisement", advertFrame(macOther, v6), our6, 5},
		{"solicitation from it", ask(v6), our6, 5},
		{"solicitation for it", ask("2001:db8::9"), nil, 0},
		{"somebody else's advertisement", advertFrame(macOther, "2001:db8::9"), nil, 0},
		{"advertisement from afar", change(advertFrame(macOther, v6), 21, 254), nil, 0},
		{"advertisement with a bad checksum", change(advertFrame(macOther, v6), 56, 0x55), nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log logged
			s, st := onStation(t,
				stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
					NoAnnounce: true}, Logger: log.logger(),
					Addresses: []netip.Prefix{netip.MustParsePrefix(v4 + "/24"),
						netip.MustParsePrefix(v6 + "/64")}})
			for range 5 {
				st.send(c.frame)
			}
			st.send(garpOf(macOurs, "192.0.2.7")) // the last frame: all before it were seen
			eventually(t, "the last frame",
				func() bool { return s.Stats().HardwareAddrConflicts == 1 })
			if n := s.Stats().AddressConflicts; n != c.conflicts {
				t.Errorf("%d conflicts, want %d", n, c.conflicts)
			}
			if c.conflicts == 0 {
				return
			}
			eventually(t, "the defence", func() bool { return st.count(c.defence, nil) > 0 })
			eventually(t, "the log",
				func() bool { return log.lines("another host uses our address") == 1 })
			if n := st.count(c.defence, nil); n != 1 || s.Stats().AddressDefences != 1 {
				t.Errorf("%d announcements, %d counted, want 1", n, s.Stats().AddressDefences)
			}
			if log.lines(`mac=02:00:00:00:00:0b`) != 1 || !hasAddr(s, v4) || !hasAddr(s, v6) {
				t.Errorf("addresses %v, log:\n%s", s.Addrs(), &log)
			}
		})
	}
}

// change sets one byte of a frame.
func change(f []byte, at int, b byte) []byte {
	f = bytes.Clone(f)
	f[at] = b
	return f
}

// TestTwin: another process with our hardware address is seen, logged once and counted.
func TestTwin(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"ARP probe", arpFrame(1, macOurs, "0.0.0.0", make([]byte, 6), "192.0.2.7")},
		{"gratuitous ARP", garpOf(macOurs, "192.0.2.7")},
		{"neighbour advertisement", advertFrame(macOurs, "2001:db8::7")},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log logged
			s, st := onStation(t,
				stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1},
					Logger:    log.logger(),
					Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
			for range 5 {
				st.send(c.frame)
			}
			eventually(t, "all counted",
				func() bool { return s.Stats().HardwareAddrConflicts == 5 })
			eventually(t, "the log",
				func() bool { return log.lines("our own hardware address") == 1 })
			if n := s.Stats().AddressConflicts; n != 0 {
				t.Errorf("%d conflicts of addresses", n)
			}
		})
	}
}

// TestNewContext gives up when its context is done and says what it was waiting for.
func TestNewContext(t *testing.T) {
	for _, c := range []struct {
		name, says string
		cfg        stack.Config
	}{
		{"duplicate detection", "wait until nobody objects to our addresses [192.0.2.1/24]",
			stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: time.Hour},
				Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}},
		{"DHCP", "no DHCP server gave an address",
			stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
				Timeout: time.Hour}, Dynamic: stack.DHCPv4}},
		{"DHCPv6", "no DHCP server gave an address",
			stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
				Timeout: time.Hour}, Dynamic: stack.DHCPv6}},
		{"routers", "wait for a router",
			stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
				Timeout: time.Hour}, Dynamic: stack.SLAAC}},
		{"anybody", "no DHCP server gave an address, and no router a prefix",
			stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
				Timeout: time.Hour}, Dynamic: stack.Auto}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.Clock = newVirtualTime(t).Clock.Clock() // ends ctx when all of it waits
			near, _ := newStation(t)
			link := &closing{LinkEndpoint: near}
			ctx, cancel := c.cfg.Clock.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			made := background(func() error {
				_, err := stack.NewContext(ctx, link, c.cfg)
				return err
			})
			err := result(t, "NewContext", made)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q and the context's error", err, c.says)
			}
			if !link.closed.Load() {
				t.Error("the link is open")
			}
		})
	}
}

// closing is a link that records that it was closed.
type closing struct {
	gstack.LinkEndpoint
	closed atomic.Bool
}

// Close implements gstack.NetworkLinkEndpoint.
func (l *closing) Close() {
	l.closed.Store(true)
	l.LinkEndpoint.Close()
}
