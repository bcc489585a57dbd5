package filter

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
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
		{name: "a peer", packets: of(40), peers: "198.51.100.200"},
		{name: "a peer elsewhere", packets: of(40), peers: "198.51.101.1",
			joined: "deny 198.51.100.0/24 40"},
		{name: "a peer that floods", packets: of(40), peers: "198.51.100.7",
			joined: "deny 198.51.100.0/24 40"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, c := newTimedFilter(t, limited)
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
			f.denials.joinNext = c.Now().Add(joinEvery)
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
