package filter

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// floodFrom has sources keep up a flood until they are denied.
func floodFrom(f *Filter, c *clocktest.Clock, packets ...[]byte) {
	var b Batch
	for range 4 * int(sustained/(500*time.Millisecond)) / 3 {
		b.Begin(f)
		for _, ip := range packets {
			for range 80 {
				b.Receive(ip)
			}
		}
		b.End()
		c.Advance(500 * time.Millisecond)
	}
	c.Advance(2 * joinEvery)
}

// entriesOf lists the prefixes ahead of the list with their sources.
func entriesOf(f *Filter) (all []string) {
	for _, e := range f.Status().Entries {
		all = append(all, fmt.Sprint(e.Verdict, " ", e.Prefix, " ", e.Sources))
	}
	return all
}

// TestJoined: where 32 sources of a prefix are denied it is denied in their place, for as long as
// the last of them, and counts on; nothing is joined over a resolver, an allowed prefix or a peer.
func TestJoined(t *testing.T) {
	of := func(n int) (packets [][]byte) {
		for i := range n {
			packets = append(packets, syn(fmt.Sprint("198.51.100.", i+1)))
		}
		return packets
	}
	of6 := func(format string, n int) (packets [][]byte) {
		for i := range n {
			packets = append(packets, datagram6(fmt.Sprintf(format, i)))
		}
		return packets
	}
	for _, tt := range []struct {
		name           string
		packets        [][]byte
		allowed, peers string
		resolver       string
		accepted       string // by the list
		joined         string // "": nothing
	}{
		{name: "one less", packets: of(joinFrom - 1)},
		{name: "IPv4", packets: of(joinFrom), joined: "deny 198.51.100.0/24 32"},
		{name: "networks of a site", packets: of6("2001:db8:7:%x::1", 40),
			joined: "deny 2001:db8:7::/56 40"},
		{name: "of two sites", packets: append(of6("2001:db8:7:%x::1", 20),
			of6("2001:db8:7:1%02x::1", 20)...)},
		{name: "a resolver", packets: of(40), resolver: "198.51.100.200"},
		{name: "an allowed address", packets: of(40), allowed: "198.51.100.200/32"},
		{name: "an address that the list accepts", packets: of(40),
			accepted: "ip saddr { 203.0.113.1, 198.51.100.200-198.51.101.7 } accept"},
		{name: "another network that the list accepts", packets: of(40),
			accepted: "ip saddr { 198.51.99.0/24, 198.51.101.0/24 } accept",
			joined:   "deny 198.51.100.0/24 40"},
		{name: "a peer", packets: of(40), peers: "198.51.100.200"},
		{name: "a peer elsewhere", packets: of(40), peers: "198.51.101.1",
			joined: "deny 198.51.100.0/24 40"},
		{name: "a peer that floods", packets: of(40), peers: "198.51.100.7",
			joined: "deny 198.51.100.0/24 40"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, c := newTimedFilter(t, strings.Replace(limited, "ip saddr @denied drop",
				tt.accepted+"\nip saddr @denied drop", 1))
			var log bytes.Buffer
			f.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
			list := func(text string) func() []netip.Addr {
				return func() (all []netip.Addr) {
					if text != "" {
						all = append(all, netip.MustParseAddr(text))
					}
					return all
				}
			}
			f.Spare(list(tt.resolver))
			f.SparePeers(list(tt.peers))
			named := 0
			if tt.allowed != "" {
				named = 1
				if err := f.Allow(netip.MustParsePrefix(tt.allowed), 0); err != nil {
					t.Fatal(err)
				}
			}
			floodFrom(f, c, tt.packets...)
			got := entriesOf(f)
			if tt.joined == "" {
				if len(got) != len(tt.packets)+named || f.Status().Joined != 0 {
					t.Fatalf("of %d sources: %q", len(tt.packets), got)
				}
				return
			}
			if len(got) != 1 || got[0] != tt.joined || f.Status().Joined != 1 {
				t.Fatalf("%q, want %q", got, tt.joined)
			}
			if n := strings.Count(log.String(), "in place of many of their sources"); n != 1 {
				t.Errorf("%d lines of the log tell of it:\n%s", n, log.String())
			}
			before := f.Status().Entries[0]
			if before.Times != 1 {
				t.Errorf("denied for the first time: %+v", before)
			}
			pass(f, 10, tt.packets[3])
			if e := f.Status().Entries[0]; e.Packets != before.Packets+10 {
				t.Errorf("%d packets, want %d", e.Packets, before.Packets+10)
			}
			c.Advance(before.Until.Sub(c.Now()) + time.Millisecond)
			if n := pass(f, 1, tt.packets[0]); n != 1 || len(entriesOf(f)) != 0 {
				t.Errorf("past its end: %d of 1 pass, %q", n, entriesOf(f))
			}
			floodFrom(f, c, tt.packets...)
			if e := f.Status().Entries[0]; e.Times != 2 || e.Until.Sub(c.Now()) < time.Minute {
				t.Errorf("the next time: %+v", e)
			}
			if f.Forget(before.Prefix); pass(f, 1, tt.packets[0]) != 1 {
				t.Error("a prefix that was joined cannot be forgotten")
			}
		})
	}
}

// TestJoinedLater: sources that are denied one after the other are joined once there are enough,
// although prefixes are looked for once a second, and those of a joined prefix are not denied
// again.
func TestJoinedLater(t *testing.T) {
	f, c := newTimedFilter(t, limited)
	for i := range joinFrom {
		f.denials.askDenial(denial{address{hi: 0xc6336400 + uint64(i)}, 4, 32, time.Minute})
		f.denials.askDenial(denial{address{hi: 0x0a000000 + uint64(i)}, 4, 32, time.Minute})
		if i == joinFrom-2 { // prefixes are looked for just before the last of them
			f.mu.Lock()
			f.denials.joinNext = c.Now().Add(joinEvery)
			f.mu.Unlock()
		}
		c.Advance(gather)
	}
	pass(f, 100, syn("198.51.100.3"))
	pass(f, 11, syn("198.51.100.4"))
	if n := len(entriesOf(f)); n != 2*joinFrom {
		t.Fatalf("%d prefixes a moment after prefixes were looked for", n)
	}
	c.Advance(joinEvery)
	if got := fmt.Sprint(entriesOf(f)); got != "[deny 198.51.100.0/24 32 deny 10.0.0.0/24 32]" &&
		got != "[deny 10.0.0.0/24 32 deny 198.51.100.0/24 32]" {
		t.Fatal(got)
	}
	for _, e := range f.Status().Entries {
		if want := map[bool]uint64{true: 111}[e.Prefix.Addr().Is4() && e.Prefix.Addr().As4()[0] ==
			198]; e.Packets != want {
			t.Errorf("%s has %d packets of its sources, want %d", e.Prefix, e.Packets, want)
		}
	}
	f.denials.askDenial(denial{address{hi: 0xc63364ff}, 4, 32, time.Minute})
	c.Advance(2 * joinEvery)
	if n := len(entriesOf(f)); n != 2 {
		t.Errorf("a source of a prefix that is denied is denied once more: %q", entriesOf(f))
	}
}

// TestJoinedTwice: addresses of IPv6 are joined to networks, and these to a site, of which no
// source is denied again.
func TestJoinedTwice(t *testing.T) {
	f, c := newTimedFilter(t, limited)
	for network := range uint64(joinFrom) {
		for host := range uint64(joinFrom) {
			f.denials.askDenial(denial{address{0x20010db800070000 | network, host}, 6, 128,
				time.Hour})
		}
		c.Advance(2 * joinEvery)
	}
	f.denials.askDenial(denial{address{0x20010db8000700ff, 1}, 6, 128, time.Hour})
	c.Advance(2 * joinEvery)
	if got := fmt.Sprint(entriesOf(f)); got != "[deny 2001:db8:7::/56 1024]" {
		t.Error(got)
	}
}

// fuzzedAddress returns one of the addresses of FuzzJoinSources: host b of network a.
func fuzzedAddress(family uint8, a, b byte) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{198, 51, a & 3, b})
	}
	return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 6: a & 3, 7: b >> 2, 15: b & 3})
}

// FuzzJoinSources denies, allows and spares what the input says, and looks what becomes of 2,048
// addresses when prefixes are denied in place of their sources: who was denied is for as long at
// least, who was allowed is, and of others only neighbours of 32 sources that are denied, and none
// who is spared.
func FuzzJoinSources(f *testing.F) {
	f.Add([]byte{0, 1, 0, 40})
	f.Add([]byte{0, 1, 0, 40, 4, 1, 100, 0})
	f.Add([]byte{1, 2, 0, 255, 0, 2, 0, 40, 9, 2, 17, 4})
	f.Add([]byte{0, 1, 0, 40, 0, 2, 0, 40, 6, 1, 90, 0, 8, 2, 91, 0})
	f.Add([]byte{0, 1, 0, 40, 2, 1, 70, 3, 3, 2, 7, 1, 0, 2, 0, 60})
	f.Fuzz(func(t *testing.T, input []byte) {
		filter, _ := newTimedFilter(t, limited)
		var asked []denial
		var spared, peers []netip.Addr
		exempt := false // whoever
		for ; len(input) >= 4; input = input[4:] {
			family, a, b, n := 4+2*input[0]&2, input[1], input[2], input[3]
			at := fuzzedAddress(family, a, b)
			near, err := at.Prefix(at.BitLen() - int(n&7))
			if err != nil {
				t.Fatal(err)
			}
			what := input[0] >> 1 % 5
			exempt = exempt || what != 0
			switch what {
			case 0:
				for i := range min(int(n), 255-int(b)) {
					of, _ := addressOf(fuzzedAddress(family, a, b+byte(i)))
					asked = append(asked, denial{of, family, at.BitLen(),
						time.Duration(i+1) * time.Second})
				}
			case 1:
				err = filter.Allow(near, 0)
			case 2:
				err = filter.Deny(near, 0)
			case 3:
				spared = append(spared, at)
			case 4:
				peers = append(peers, at)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		filter.SparePeers(func() []netip.Addr { return peers })
		filter.denySources(asked, spared)
		verdicts := func() (all []*Entry) {
			c := filter.current.Load()
			for _, family := range []uint8{4, 6} {
				for i := range 1 << 10 {
					src, _ := addressOf(fuzzedAddress(family, byte(i>>8), byte(i)))
					var e *Entry
					if n := c.entryOf(&Packet{family: family, src: src}); n > 0 {
						e = c.entries[n-1]
					}
					all = append(all, e)
				}
			}
			return all
		}
		sum := func() (packets uint64, sources int) {
			for _, e := range filter.entries {
				packets += e.tally.n.Load()
				if e.Automatic {
					sources += max(e.Sources, 1)
				}
			}
			return packets, sources
		}
		for i, e := range filter.entries {
			e.tally.n.Store(uint64(1 + i%7))
		}
		before := verdicts()
		packets, sources := sum()
		for range 2 { // addresses of IPv6 to networks, networks to a site
			filter.denials.joinNext = time.Time{}
			filter.joinSources(spared)
		}
		if p, s := sum(); p != packets || s != sources {
			t.Errorf("%d packets of %d sources, want %d of %d", p, s, packets, sources)
		}
		for i, now := range verdicts() {
			was := before[i]
			at := fuzzedAddress(4+2*byte(i>>10), byte(i>>8), byte(i))
			switch {
			case was == now, was != nil && now != nil && was.Automatic && now.Verdict == Denied &&
				!now.Automatic: // of a network that somebody has denied
			case now == nil || now.Verdict != Denied || now.Sources < joinFrom:
				t.Errorf("%s: %+v, was %+v", at, now, was)
			case was == nil && (slices.Contains(spared, at) || slices.Contains(peers, at)):
				t.Errorf("%s is spared: %+v", at, now)
			case was != nil && (!was.Automatic || now.Until.Before(was.Until)):
				t.Errorf("%s was denied until %v: %+v", at, was.Until, now)
			}
		}
		left := map[netip.Prefix]int{}
		for _, e := range filter.entries {
			if e.Prefix.Bits() == 32 && e.Automatic {
				p, _ := e.Prefix.Addr().Prefix(joinBits4)
				left[p]++
			}
		}
		for p, n := range left {
			if n >= joinFrom && !exempt {
				t.Errorf("%d sources of %s are denied one by one", n, p)
			}
		}
	})
}

// TestWeakSources: 10,000 sources, each far below every limit by address, are denied by the limits
// of their prefixes.
func TestWeakSources(t *testing.T) {
	f, c := newTimedFilter(t, strings.ReplaceAll(limited, "{ ip saddr", "{ ip saddr and "+
		"255.255.255.0"))
	var b Batch
	for range 5 {
		b.Begin(f)
		for i := range 10000 {
			b.Receive(syn(numbered(i)))
		}
		b.End()
		c.Advance(time.Second)
	}
	s := f.Status()
	if len(s.Entries) != 39 || s.Sources != 40 {
		t.Errorf("%d prefixes of %d are denied, want 39 of 40: the last has 16 sources",
			len(s.Entries), s.Sources)
	}
}
