package addrconf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// rdnss is the option for resolvers (RFC 8106 section 5.1).
func rdnss(lasts uint32, servers ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{25, byte(1 + 2*len(servers)), 0, 0}, lasts)
	for _, s := range servers {
		b = append(b, netip.MustParseAddr(s).AsSlice()...)
	}
	return b
}

// advert is a router's advertisement (RFC 4861 section 4.2) with a checksum for from and all nodes.
func advert(from string, options ...[]byte) header.ICMPv6 {
	m := header.ICMPv6(append([]byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0},
		bytes.Join(options, nil)...))
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: m, Src: env.ToAddress(netip.MustParseAddr(from)),
		Dst: header.IPv6AllNodesMulticastAddress,
	}))
	return m
}

// TestAdvertisedResolvers sends advertisements at given times and checks the resolvers known then.
func TestAdvertisedResolvers(t *testing.T) {
	type told struct {
		at     int // seconds from the start
		router string
		option []byte
	}
	many := func(first, n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("2001:db8::%x", first+i))
		}
		return all
	}
	var routers []told
	for i := range 20 {
		routers = append(routers, told{0, fmt.Sprintf("fe80::%x", i+1),
			rdnss(60, fmt.Sprintf("2001:db8::%x", i+1))})
	}
	for _, c := range []struct {
		name    string
		told    []told
		at      int
		want    string
		refused uint64
		next    int // when an entry expires, in seconds; 0: never
	}{
		{"one", []told{{0, "fe80::1", rdnss(60, "2001:db8::1")}}, 59, "[2001:db8::1]", 0, 60},
		{"over", []told{{0, "fe80::1", rdnss(60, "2001:db8::1")}}, 60, "[]", 0, 0},
		{"again", []told{{0, "fe80::1", rdnss(60, "2001:db8::1")},
			{50, "fe80::1", rdnss(60, "2001:db8::1")}}, 100, "[2001:db8::1]", 0, 110},
		{"shortened", []told{{0, "fe80::1", rdnss(600, "2001:db8::1")},
			{1, "fe80::1", rdnss(2, "2001:db8::1")}}, 3, "[]", 0, 0},
		{"withdrawn", []told{{0, "fe80::1", rdnss(600, "2001:db8::1", "2001:db8::2")},
			{1, "fe80::1", rdnss(0, "2001:db8::1")}}, 1, "[2001:db8::2]", 0, 600},
		{"withdrawn by another router", []told{{0, "fe80::1", rdnss(600, "2001:db8::1")},
			{1, "fe80::2", rdnss(0, "2001:db8::1")}}, 1, "[2001:db8::1]", 0, 600},
		{"for ever", []told{{0, "fe80::1", rdnss(1<<32-1, "2001:db8::1")}},
			1 << 30, "[2001:db8::1]", 0, 0},
		{"the same from two", []told{{0, "fe80::1", rdnss(9, "2001:db8::1")},
			{0, "fe80::2", rdnss(60, "2001:db8::1")}}, 10, "[2001:db8::1]", 0, 60},
		{"more than 8 of a router", []told{{0, "fe80::1", rdnss(60, many(1, 6)...)},
			{0, "fe80::1", rdnss(60, many(7, 6)...)}},
			1, fmt.Sprint(addresses(many(1, 8))), 4, 60},
		{"more than 16 routers", routers, 1, fmt.Sprint(addresses(many(1, 8))), 4, 60},
		{"room again", append(routers, told{60, "fe80::99", rdnss(60, "2001:db8::99")}), 61,
			"[2001:db8::99]", 4, 120},
	} {
		t.Run(c.name, func(t *testing.T) {
			start, n := time.Now(), newRAEvents()
			for _, r := range c.told {
				m, ok := parseNDP(env.ToAddress(netip.MustParseAddr(r.router)),
					header.IPv6AllNodesMulticastAddress, advert(r.router, r.option))
				if !ok {
					t.Fatal("not understood")
				}
				n.advertised(m, start.Add(time.Duration(r.at)*time.Second))
			}
			_, dns, until := n.snapshot(start.Add(time.Duration(c.at) * time.Second))
			if fmt.Sprint(dns) != c.want || n.refused() != c.refused {
				t.Errorf("%v, %d refused; want %v, %d", dns, n.refused(), c.want, c.refused)
			}
			if until.IsZero() != (c.next == 0) || c.next != 0 &&
				until.Sub(start) != time.Duration(c.next)*time.Second {
				t.Errorf("the first is over at %v, want %d s", until.Sub(start), c.next)
			}
		})
	}
}

// TestAdvertisedRouters: the preferred router comes first, of equals the one known first, also when
// a preference changes (RFC 4191 section 3.1).
func TestAdvertisedRouters(t *testing.T) {
	const low, medium, high = header.LowRoutePreference, header.MediumRoutePreference,
		header.HighRoutePreference
	n := newRAEvents()
	for i, step := range []struct {
		router     string
		preference header.NDPRoutePreference // -1: it withdraws
		want       string
	}{
		{"fe80::1", medium, "[fe80::1]"}, {"fe80::2", medium, "[fe80::1 fe80::2]"},
		{"fe80::3", high, "[fe80::3 fe80::1 fe80::2]"},
		{"fe80::1", high, "[fe80::1 fe80::3 fe80::2]"},
		{"fe80::1", low, "[fe80::3 fe80::2 fe80::1]"},
		{"fe80::2", 2, "[fe80::3 fe80::2 fe80::1]"}, // reserved: medium
		{"fe80::3", withdrawn, "[fe80::2 fe80::1]"},
		{"fe80::3", low, "[fe80::2 fe80::1 fe80::3]"},
	} {
		to, err := toSubnet(netip.MustParsePrefix("::/0"))
		if err != nil {
			t.Fatal(err)
		}
		router := env.ToAddress(netip.MustParseAddr(step.router))
		if step.preference == withdrawn {
			n.OnOffLinkRouteInvalidated(env.NIC, to, router)
		} else {
			n.OnOffLinkRouteUpdated(env.NIC, to, router, step.preference)
		}
		routes, _, _ := n.snapshot(time.Now())
		var got []netip.Addr
		for _, r := range routes {
			got = append(got, r.Gateway)
		}
		if fmt.Sprint(got) != step.want {
			t.Errorf("step %d: %v, want %s", i, got, step.want)
		}
	}
}

// withdrawn stands for a lifetime of 0.
const withdrawn header.NDPRoutePreference = 0xff

// TestAdvertisedLinkParameters takes over what routers say, and keeps what they do not say.
func TestAdvertisedLinkParameters(t *testing.T) {
	n := newRAEvents()
	for i, step := range []struct {
		body string // hop limit, flags, lifetime, reachable and retransmission time
		want linkParameters
	}{
		{"\x21\x00\x07\x08\x00\x00\x75\x30\x00\x00\x01\xf4", linkParameters{33, 30 * time.Second,
			500 * time.Millisecond}},
		{"\x00\x00\x07\x08\x00\x00\x00\x00\x00\x00\x00\x00", linkParameters{33, 30 * time.Second,
			500 * time.Millisecond}},
		{"\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01", linkParameters{1, leastReachable,
			leastRetransmit}},
		{"\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff", linkParameters{1, leastReachable,
			(1<<32 - 1) * time.Millisecond}},
	} {
		n.advertised(ndpMessage{link: parseLinkParameters([]byte(step.body))}, time.Now())
		if got := n.parameters(); got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
}

func addresses(list []string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// FuzzRouterAdvert: whatever routers advertise, the state kept is bounded.
func FuzzRouterAdvert(f *testing.F) {
	f.Add([]byte(advert("fe80::1", rdnss(60, "2001:db8::1", "2001:db8::2"))), byte(1))
	f.Add([]byte(advert("fe80::1", []byte{1, 1, 2, 0, 0, 0, 0, 0xb}, rdnss(0, "2001:db8::1"))),
		byte(2))
	f.Add([]byte(advert("fe80::1", []byte{3, 4, 64, 0xc0}, make([]byte, 28))), byte(3))
	f.Add([]byte(advert("fe80::1", []byte{25, 0})), byte(4))
	f.Add([]byte(advert("fe80::1", []byte{5, 1, 0, 0, 0, 0, 5, 0}, []byte{5, 2})), byte(5))
	n, now := newRAEvents(), time.Now()
	f.Fuzz(func(t *testing.T, b []byte, router byte) {
		from := env.ToAddress(netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: router}))
		icmp := header.ICMPv6(bytes.Clone(b))
		if len(icmp) >= header.ICMPv6HeaderSize { // what has a wrong checksum is soon dealt with
			icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp,
				Src: from, Dst: header.IPv6AllNodesMulticastAddress}))
		}
		m, ok := parseNDP(from, header.IPv6AllNodesMulticastAddress, icmp)
		if !ok {
			return
		}
		n.advertised(m, now)
		total := 0
		for _, r := range n.dns.routers {
			total += len(r.servers)
		}
		if len(n.dns.routers) > maxRouters || total > maxRouters*maxServersPerRouter ||
			len(n.dns.current()) > maxServersUsed {
			t.Errorf("%d routers, %d resolvers", len(n.dns.routers), total)
		}
	})
}
