package stack_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// advertised is a router's advertisement (RFC 4861 section 4.2) to all nodes: a default route for
// half an hour and options.
func advertised(router string, options ...[]byte) []byte {
	head := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	return icmp6Frame(macOther, router, "ff02::1", append([][]byte{head}, options...)...)
}

// resolvers is the option for them (RFC 8106 section 5.1).
func resolvers(lasts uint32, servers ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{25, byte(1 + 2*len(servers)), 0, 0}, lasts)
	for _, s := range servers {
		b = append(b, netip.MustParseAddr(s).AsSlice()...)
	}
	return b
}

// prefix is the option for one that is on the link and makes addresses (RFC 4861 section 4.6.2).
func prefix(p string, valid, preferred uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{3, 4, 64, 0xc0}, valid)
	b = binary.BigEndian.AppendUint32(b, preferred)
	return append(append(b, 0, 0, 0, 0), netip.MustParseAddr(p).AsSlice()...)
}

// TestRouterFlood: thousands of advertisements, each from another router with other prefixes,
// routes and resolvers, use a bounded amount of memory and of log.
func TestRouterFlood(t *testing.T) {
	const frames = 3000
	var log logged
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{
		DuplicateDetection: -1,
		Timeout:            time.Millisecond,
	}, Dynamic: stack.SLAAC, Logger: log.logger(),
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	for i := range frames {
		lasts := uint32(3600)
		if i%2 == 1 { // what was there a moment ago is nearly over
			lasts = 2
		}
		st.send(advertised(fmt.Sprintf("fe80::%x", i%500+1),
			prefix(fmt.Sprintf("2001:db8:%x::", i%7), 7200, lasts),
			resolvers(lasts, fmt.Sprintf("2001:db8::%x", i+1), fmt.Sprintf("2001:db8:1::%x", i+1))))
		if i%100 == 99 { // netpair drops frames beyond a port's queue
			eventually(t, "the frames taken",
				func() bool { return routerAdverts(s) == uint64(i+1) })
		}
	}
	if n := s.Stats().ResolversRefused; n < frames {
		t.Errorf("%d resolvers refused of %d", n, 2*frames)
	}
	if n := len(s.Addrs()); n > 12 {
		t.Errorf("%d addresses", n)
	}
	if n := len(s.Netstack().GetRouteTable()); n > 40 {
		t.Errorf("%d routes", n)
	}
	if n := log.lines("network configuration"); n > 20 || len(log.String()) > 20<<10 {
		t.Errorf("%d lines, %d bytes of log", n, len(log.String()))
	}
	t.Logf("%d lines, %d bytes of log, %d addresses, %d routes", strings.Count(log.String(), "\n"),
		len(log.String()), len(s.Addrs()), len(s.Netstack().GetRouteTable()))
}

func routerAdverts(s *stack.Stack) uint64 {
	return s.Netstack().Stats().ICMP.V6.PacketsReceived.RouterAdvert.Value()
}

// TestResolverEnds: resolvers that a router advertises are used until their lifetime is over.
func TestResolverEnds(t *testing.T) {
	v := newVirtualTime(t)
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{
		DuplicateDetection: -1,
		Timeout:            time.Millisecond,
	}, Dynamic: stack.SLAAC, Clock: v.Clock.Clock()})
	v.stop()
	st.send(advertised("fe80::1", resolvers(2, "2001:db8::53")))
	servers := func(n int) func() bool { return func() bool { return len(s.Servers()) == n } }
	if began := v.Now(); !v.AdvanceUntil(time.Second, servers(1)) ||
		!v.AdvanceUntil(3*time.Second, servers(0)) || v.Now().Sub(began) < 2*time.Second {
		t.Errorf("servers %v after %v", s.Servers(), v.Now().Sub(began))
	}
}

// TestTwoHourRule: an advertisement cannot end an address at once (RFC 4862 section 5.5.3 e): one
// that says 1 s for a prefix that was good for a day leaves it two hours. An address whose prefix
// begins with 2 s ends then.
func TestTwoHourRule(t *testing.T) {
	v := newVirtualTime(t)
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{
		DuplicateDetection: -1,
		Timeout:            time.Millisecond,
	}, Dynamic: stack.SLAAC, Clock: v.Clock.Clock()})
	v.stop()
	within := func(d time.Duration, what string, ok func() bool) {
		t.Helper()
		if !v.AdvanceUntil(d, ok) {
			t.Fatalf("not in %v: %s", d, what)
		}
	}
	addressIn := func(p string) func() bool {
		return func() bool {
			return slices.ContainsFunc(s.Addrs(),
				func(a netip.Prefix) bool { return netip.MustParsePrefix(p).Contains(a.Addr()) })
		}
	}
	st.send(advertised("fe80::1", prefix("2001:db8:1::", 86400, 86400),
		prefix("2001:db8:2::", 2, 2)))
	within(time.Second, "an address of the first prefix", addressIn("2001:db8:1::/64"))
	within(time.Second, "an address of the second prefix", addressIn("2001:db8:2::/64"))
	st.send(advertised("fe80::1", prefix("2001:db8:1::", 1, 1)))
	within(3*time.Second, "the second prefix's address gone",
		func() bool { return !addressIn("2001:db8:2::/64")() })
	if !addressIn("2001:db8:1::/64")() {
		t.Error("an advertisement ended the first prefix's address")
	}
}
