package filter

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// limited limits and denies by source in nft's words.
const limited = `
table inet filter {
	set flood {
		type ipv4_addr
		size 65535
		flags dynamic
	}
	set flood6 {
		type ipv6_addr
		size 65535
		flags dynamic
	}
	set denied {
		type ipv4_addr
		size 65535
		flags dynamic,timeout
	}
	set denied6 {
		type ipv6_addr
		size 65535
		flags dynamic,timeout
	}
	chain input {
		type filter hook input priority filter; policy accept;
		ip saddr @denied drop
		ip6 saddr and ffff:ffff:ffff:ffff:: @denied6 drop
		tcp flags syn / fin,syn,rst,ack update @flood { ip saddr limit rate over 100/second burst 100 packets } add @denied { ip saddr timeout 1m } drop
		meta l4proto udp update @flood6 { ip6 saddr and ffff:ffff:ffff:ffff:: limit rate over 10/second burst 10 packets } add @denied6 { ip6 saddr and ffff:ffff:ffff:ffff:: timeout 1m } drop
	}
}
`

// newTimedFilter returns a filter that goes by a test's clock.
func newTimedFilter(t testing.TB, text string) (*Filter, *clocktest.Clock) {
	t.Helper()
	l, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c := clocktest.New()
	f, err := New(l, c.Clock())
	if err != nil {
		t.Fatal(err)
	}
	return f, c
}

// pass sends n equal packets at one time, and returns how many pass.
func pass(f *Filter, n int, ip []byte) (passed int) {
	for range n {
		if receive(f, ip) == "" {
			passed++
		}
	}
	return passed
}

func syn(src string) []byte { return packet(src, "192.0.2.10", protoTCP, flagSYN, 4000, 80) }

func datagram6(src string) []byte {
	return packet(src, "2001:db8::10", protoUDP, 0, 4000, 53)
}

// TestLimitBySource: each source has a limit of its own, of IPv6 each /64; other packets do not
// count.
func TestLimitBySource(t *testing.T) {
	f, c := newTimedFilter(t, limited)
	for _, tt := range []struct {
		ip         []byte
		sent, want int
	}{
		{syn("198.51.100.1"), 150, 100},
		{syn("198.51.100.2"), 150, 100},
		{packet("198.51.100.1", "192.0.2.10", protoTCP, flagACK, 4000, 80), 300, 300},
		{packet("198.51.100.1", "192.0.2.10", protoUDP, 0, 4000, 80), 300, 300},
		{datagram6("2001:db8:1:2::1"), 6, 6},
		{datagram6("2001:db8:1:2:3::1"), 6, 4},
		{datagram6("2001:db8:1:3::1"), 11, 10},
	} {
		if n := pass(f, tt.sent, tt.ip); n != tt.want {
			t.Errorf("% x: %d of %d pass, want %d", tt.ip[:20], n, tt.sent, tt.want)
		}
	}
	c.Advance(500 * time.Millisecond)
	if n := pass(f, 100, syn("198.51.100.1")); n != 50 {
		t.Errorf("half a second later %d pass, want 50", n)
	}
	if s := f.Status(); s.Sources != 4 || s.Evicted != 0 || s.Denials != 0 {
		t.Errorf("%d sources, %d evicted, %d denied", s.Sources, s.Evicted, s.Denials)
	}
}

// floodFor has a source send at twice its limit.
func floodFor(f *Filter, c *clocktest.Clock, d time.Duration, ip []byte) {
	for end := c.Now().Add(d); c.Now().Before(end); c.Advance(50 * time.Millisecond) {
		pass(f, 10, ip)
	}
}

// TestAutomaticDenial: a source that keeps up a flood is denied for a minute, then for twice as
// long, up to an hour; the log has a line for each; one that stays within its limit, resolvers and
// what is allowed are not.
func TestAutomaticDenial(t *testing.T) {
	f, c := newTimedFilter(t, limited)
	var log bytes.Buffer
	f.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
	resolver := netip.MustParseAddr("198.51.100.53")
	f.Spare(func() []netip.Addr { return []netip.Addr{resolver} })
	if err := f.Allow(netip.MustParsePrefix("203.0.113.0/24"), 0); err != nil {
		t.Fatal(err)
	}
	other := packet("198.51.100.1", "192.0.2.10", protoTCP, flagACK, 4000, 80)
	floodFor(f, c, 2*time.Second, syn("198.51.100.1"))
	c.Advance(2 * time.Second)
	floodFor(f, c, 2*time.Second, syn("198.51.100.1"))
	if s := f.Status(); s.Denials != 0 || pass(f, 1, other) != 1 {
		t.Fatalf("denied after two floods of 2 s each: %+v", s.Entries)
	}
	c.Advance(10 * time.Second)
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		want *= time.Minute
		floodFor(f, c, 5*time.Second, syn("198.51.100.1"))
		var e Entry
		for _, e = range f.Status().Entries {
			if e.Automatic {
				break
			}
		}
		if !e.Automatic || e.Verdict != Denied || e.Prefix.String() != "198.51.100.1/32" ||
			e.Times != i+1 || e.Packets == 0 || pass(f, 1, other) != 0 {
			t.Fatalf("flood %d: %+v", i+1, e)
		}
		left := e.Until.Sub(c.Now())
		if left > want || left < want-2*time.Second {
			t.Fatalf("flood %d is denied for %v, want %v", i+1, left, want)
		}
		c.Advance(left + time.Millisecond)
		if pass(f, 1, other) != 1 {
			t.Fatalf("flood %d: denied %v later", i+1, left)
		}
	}
	for _, src := range []string{resolver.String(), "203.0.113.9"} {
		floodFor(f, c, 10*time.Second, syn(src))
	}
	for range 200 { // 80 a second
		pass(f, 4, syn("198.51.100.2"))
		c.Advance(50 * time.Millisecond)
	}
	s := f.Status()
	if s.Denials != 8 || s.Spared == 0 {
		t.Errorf("%d denials, %d spared", s.Denials, s.Spared)
	}
	if n := strings.Count(log.String(), "keep up a flood"); n != 8 {
		t.Errorf("%d lines of the log tell of 8 denials:\n%s", n, log.String())
	}
	floodFor(f, c, 5*time.Second, syn("198.51.100.1"))
	if !f.Forget(netip.MustParsePrefix("198.51.100.1/32")) || pass(f, 1, other) != 1 {
		t.Error("a source that was denied cannot be forgotten")
	}
	floodFor(f, c, 5*time.Second, syn("198.51.100.1"))
	if e := f.Status().Entries; len(e) != 2 || e[1].Times != 1 {
		t.Errorf("after it was forgotten: %+v", e)
	}
}

// source returns the nth of many addresses.
func numbered(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) }

// TestFloodsOfSources: of 1, 100 and 10,000 sources that flood each is denied, and no other. Those
// of a /24 are denied by one prefix, for which there is a rule ahead of the filter.
func TestFloodsOfSources(t *testing.T) {
	for _, tt := range []struct{ sources, entries, busy int }{{1, 1, 1}, {100, 1, 1},
		{10000, 39 + 16, 39}} {
		n := tt.sources
		f, c := newTimedFilter(t, strings.ReplaceAll(limited, "100/second burst 100 packets",
			"2/second burst 2 packets"))
		packets := make([][]byte, n)
		for i := range packets {
			packets[i] = syn(numbered(i))
		}
		var b Batch
		for range 10 {
			b.Begin(f)
			for _, ip := range packets {
				for range 3 {
					b.Receive(ip)
				}
			}
			b.End()
			c.Advance(500 * time.Millisecond)
		}
		// those that found no room ask again
		for i := 0; i < 2*n/maxAsked && f.Status().Denials < uint64(n); i++ {
			b.Begin(f)
			for _, ip := range packets {
				b.Receive(ip)
				b.Receive(ip)
			}
			b.End()
			c.Advance(500 * time.Millisecond)
		}
		c.Advance(2 * joinEvery)
		s, sources := f.Status(), 0
		for _, e := range s.Entries {
			sources += max(e.Sources, 1)
		}
		// some are denied by their prefix before they have asked for it
		if s.Denials != uint64(sources) || sources > n || sources < n*9/10 || s.Full != 0 {
			t.Errorf("of %d sources %d are denied, %d by prefixes, %d found no room", n, s.Denials,
				sources, s.Full)
		}
		if len(s.Entries) != tt.entries {
			t.Errorf("%d sources are denied by %d prefixes, want %d", n, len(s.Entries), tt.entries)
		}
		b.Begin(f)
		for _, ip := range packets {
			for range 70 * max(1, 100/n) {
				if b.Receive(ip) == "" {
					t.Fatalf("of %d sources % x is not denied", n, ip[12:16])
				}
			}
		}
		b.End()
		c.Advance(aging)
		whole := 0 // prefixes of TCP that would be rules
		all, _ := f.Busiest()
		for _, k := range all {
			if k.Proto == protoTCP && (n == 1 || k.From.Bits() == 24) {
				whole++
			}
		}
		if whole != tt.busy {
			t.Errorf("%d sources: %d prefixes would be dropped ahead of the filter, want %d", n,
				whole, tt.busy)
		}
		if got := pass(f, 3, syn("198.51.100.1")); got != 2 {
			t.Errorf("beside %d floods %d of 3 packets of another source pass, want 2", n, got)
		}
	}
}

// TestInventedSources: 25 times as many invented sources as there is room for take no memory, and
// do not push out a source that floods.
func TestInventedSources(t *testing.T) {
	const room = 1 << 13
	f, c := newTimedFilter(t, strings.ReplaceAll(limited, "size 65535", fmt.Sprint("size ", room)))
	flood, n := syn("198.51.100.1"), 0
	ip := syn("10.0.0.0")
	var b Batch
	allocated := testing.AllocsPerRun(10, func() {
		b.Begin(f)
		for range 20000 {
			n++
			ip[13], ip[14], ip[15] = byte(n>>16), byte(n>>8), byte(n)
			b.Receive(ip)
			if n%100 == 0 {
				b.Receive(flood)
			}
		}
		b.End()
		c.Advance(200 * time.Millisecond)
	})
	s := f.Status()
	if allocated > 100 { // by timers, once for 20,000 packets
		t.Errorf("%v allocations", allocated)
	}
	if s.Sources > room || s.Evicted == 0 {
		t.Errorf("%d sources are remembered, %d were evicted", s.Sources, s.Evicted)
	}
	for range 40 {
		b.Begin(f)
		for range 1000 {
			b.Receive(flood)
			for range 4 {
				n++
				ip[13], ip[14], ip[15] = byte(n>>16), byte(n>>8), byte(n)
				b.Receive(ip)
			}
		}
		b.End()
		c.Advance(100 * time.Millisecond)
	}
	if e := f.Status().Entries; len(e) != 1 || e[0].Prefix.String() != "198.51.100.1/32" {
		t.Errorf("denied are %+v", e)
	}
}

// TestLimitsFromManyQueues: several workers judge while lists and prefixes change.
func TestLimitsFromManyQueues(t *testing.T) {
	f := newFilter(t, limited)
	l, err := Parse(limited)
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			ip := syn("10.0.0.0")
			var b Batch
			for i := range 200 {
				b.Begin(f)
				for range 64 {
					ip[15] = byte(i % (w + 2))
					b.Receive(ip)
				}
				b.End()
			}
		})
	}
	workers.Go(func() {
		for i := range 20 {
			p := netip.MustParsePrefix("10.0.0.1/32")
			if err := f.Deny(p, time.Minute); err != nil {
				t.Error(err)
			}
			f.Forget(p)
			if i%5 == 0 {
				if err := f.Load(l); err != nil {
					t.Error(err)
				}
			}
			f.Status()
			f.denials.askDenial(denial{address{hi: 0x0a000002}, 4, 32, time.Minute})
			f.denyAsked()
		}
	})
	workers.Wait()
	if s := f.Status(); s.Denials != 1 {
		t.Errorf("%d denials of one source", s.Denials)
	}
}

// TestSourceErrors: what is wrong with a limit by source is said in words.
func TestSourceErrors(t *testing.T) {
	in := func(rule string) string {
		return "set f { type ipv4_addr; flags dynamic; size 10; }\n" +
			"set g { type ipv4_addr; flags dynamic, timeout; }\nset h { type ipv4_addr; size 9; " +
			"elements = { 192.0.2.1 }\n}\nchain input {\n" + rule + "\n}"
	}
	const over, deny = "{ ip saddr limit rate over 1/second }", "add @g { ip saddr timeout 1m }"
	for rule, want := range map[string]string{
		"update @x " + over + " drop":                          "flags dynamic",
		"update @h " + over + " drop":                          "flags dynamic",
		"update f " + over + " drop":                           "@flood",
		"update @f { ip daddr limit rate over 1/second } drop": `want "saddr"`,
		"update @f { tcp dport limit rate 1/second } drop":     "want ip saddr",
		"update @f { ip saddr and 255.0.255.0 limit } drop":    "mask of a prefix",
		"update @f { ip saddr and ffff:: limit } drop":         "mask of a prefix",
		"update @f { ip saddr } drop":                          "want limit rate",
		"update @f { ip saddr limit rate 1/second drop":        `want "}"`,
		deny + " drop": "behind their limit",
		"limit rate over 1/second " + deny + " drop":                 "behind their limit",
		"ip saddr @f drop":                                           "with a timeout",
		"ip saddr and 255.0.0.0 10.0.0.0 drop":                       "want a dynamic set",
		"ip6 saddr ::1 update @f " + over + " drop":                  "two rules",
		"meter m " + over + " add @g { ip saddr timeout 1x } drop":   "1h30m",
		"meter m " + over + " " + deny + " accept":                   "drops their packets",
		"meter m { ip saddr limit rate 1/second } " + deny + " drop": "behind their limit",
		"meter m size 0 { ip saddr limit rate 1/second } drop":       "from 1 to",
		"tcp flags syn drop":                                         `want "/"`,
		"tcp flags x / syn drop":                                     "want flags such as",
		"tcp flags syn / ack drop":                                   "never matches",
		"udp dport 1 tcp flags syn / syn drop":                       "never matches",
	} {
		_, err := Parse(in(rule))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", rule, err, want)
		}
	}
	if _, err := Parse(in("ip saddr @h drop")); err != nil {
		t.Error(err)
	}
	big := in("meter a size 200000 { ip saddr limit rate 1/second } drop\n" +
		"meter b size 200000 { ip saddr limit rate 1/second } drop")
	l, err := Parse(big)
	if err == nil {
		_, err = New(l, clocktest.New().Clock())
	}
	if err == nil || !strings.Contains(err.Error(), "smaller size") {
		t.Errorf("two meters of 200,000: %v", err)
	}
}

// TestAdopt: another filter has the prefixes of one, with their ends and how often they flooded.
func TestAdopt(t *testing.T) {
	f, c := newTimedFilter(t, limited)
	for _, err := range []error{f.Deny(netip.MustParsePrefix("203.0.113.0/24"), time.Minute),
		f.Allow(netip.MustParsePrefix("203.0.113.9/32"), 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	floodFor(f, c, 5*time.Second, syn("198.51.100.1"))
	all, left := f.HandedOver()
	if len(all) != 3 || left != 0 || !all[2].Automatic {
		t.Fatalf("%+v, %d left", all, left)
	}
	g, err := New(nil, c.Clock())
	if err == nil {
		err = g.Adopt(all)
	}
	if err != nil {
		t.Fatal(err)
	}
	for src, want := range map[string]int{"203.0.113.1": 0, "203.0.113.9": 1, "198.51.100.1": 0,
		"198.51.100.2": 1} {
		if n := pass(g, 1, syn(src)); n != want {
			t.Errorf("of %s %d packets pass, want %d", src, n, want)
		}
	}
	if e := g.Status().Entries; e[2].Times != 1 || !e[2].Until.Equal(all[2].Until) {
		t.Errorf("%+v", e[2])
	}
	c.Advance(2 * time.Minute)
	if n := pass(g, 1, syn("203.0.113.1")) + pass(g, 1, syn("198.51.100.1")); n != 2 {
		t.Errorf("past their ends %d of 2 sources pass", n)
	}
	for i := range maxHandedOver {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		if err := f.Deny(netip.PrefixFrom(a, 32), 0); err != nil {
			t.Fatal(err)
		}
	}
	if all, left := f.HandedOver(); len(all) != maxHandedOver || left != 1 {
		t.Errorf("of many %d are handed over, %d left", len(all), left)
	}
	if err := g.Adopt([]Entry{{Verdict: "x"}}); err == nil {
		t.Error("an entry of another version is taken")
	}
	if all, left := (*Filter)(nil).HandedOver(); all != nil || left != 0 {
		t.Errorf("of no filter: %v, %d", all, left)
	}
}
