package dv_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// dropFrom is a rule for the low ports, as the packet filter makes it.
func dropFrom(proto uint8, prefix string) dv.DropRule {
	return dv.DropRule{From: netip.MustParsePrefix(prefix), Proto: proto, Mask: 1 << 15}
}

func addDrop(t testing.TB, d *dv.Device, r dv.DropRule) *dv.Drop {
	t.Helper()
	drop, err := d.AddDrop(r)
	if err != nil {
		t.Fatal(err)
	}
	return drop
}

// from is a frame to our MAC.
func from(src string, proto uint8, port uint16) []byte {
	a := netip.MustParseAddr(src)
	dst := hostV4
	if a.Is6() {
		dst = hostV6
	}
	return packet(netip.AddrPortFrom(a, 30001), netip.AddrPortFrom(dst, port), proto, 40)
}

// reached returns how many frames the receive queues have had.
func reached(d *dv.Device) (n int) {
	for i := range d.NumRx() {
		n += len(poll(d.Rx(i)))
	}
	return n
}

// TestDropRules: what a rule drops never comes to the rings, and is counted; the ports of answers,
// other sources and Linux's frames of the same source are not touched.
func TestDropRules(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
	const bad4, bad6 = "203.0.113.7", "2001:db8:bad::7"
	frames := [][]byte{from(bad4, tcp, 443), from(bad4, udp, 53), from(bad6, tcp, 443)}
	s.wire.send(t, frames...)
	if n := reached(d); n != len(frames) {
		t.Fatalf("%d frames without a rule", n)
	}
	drops := []*dv.Drop{addDrop(t, d, dropFrom(tcp, "203.0.113.0/24")),
		addDrop(t, d, dropFrom(udp, "203.0.113.7/32")),
		addDrop(t, d, dropFrom(tcp, "2001:db8:bad::/64"))}
	for range 10 {
		s.wire.send(t, frames...)
	}
	if n := reached(d); n != 0 {
		t.Errorf("%d frames of denied sources came", n)
	}
	for i, drop := range drops {
		if n, ok := drop.Counted(); !ok || n.Packets != 10 || n.Bytes != uint64(10*len(frames[i])) {
			t.Errorf("rule %d has counted %+v, %v", i, n, ok)
		}
	}
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"a port of answers", from(bad4, tcp, 40000)},
		{"another source", from("203.0.114.7", tcp, 443)},
		{"another source of UDP", from("203.0.113.8", udp, 53)},
		{"another protocol", from(bad6, udp, 53)},
		{"another network", from("2001:db8:bad:1::7", tcp, 443)},
	} {
		s.goes(t, d, c.name, c.frame, true)
	}
	linux := toHost(tcp, hostV4, 443)
	copy(linux[26:], netip.MustParseAddr(bad4).AsSlice())
	s.goes(t, d, "Linux's frame of a denied source", linux, false)
	for _, drop := range drops {
		for range 2 {
			if err := drop.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	s.wire.send(t, frames...)
	if n := reached(d); n != len(frames) {
		t.Errorf("%d frames after the rules' end", n)
	}
	if n, _ := drops[0].Counted(); n.Packets != 10 {
		t.Errorf("after its end a rule has counted %d", n.Packets)
	}
	addDrop(t, d, dropFrom(tcp, "203.0.113.0/24")) // which ends with the device
}

// TestDropRulesListed: the list of rules has them, first and with their counts.
func TestDropRulesListed(t *testing.T) {
	s, d := usual(t, dv.Config{})
	addDrop(t, d, dropFrom(tcp, "203.0.113.0/24"))
	s.wire.send(t, from("203.0.113.7", tcp, 443))
	i := slices.IndexFunc(d.Rules(), func(r dv.RuleInfo) bool {
		return strings.HasPrefix(r.Match, "TCP from 203.0.113.0/24 to ports 0 to 32767, MAC")
	})
	if i != 0 {
		t.Fatalf("it is rule %d of %+v", i, d.Rules())
	}
	if r := d.Rules()[0]; r.To != "nobody (dropped)" || !r.Counted || r.Packets != 1 {
		t.Errorf("%+v", r)
	}
}

// TestDropRulesMove: rules follow another MAC and a new table of queues.
func TestDropRulesMove(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
	addDrop(t, d, dropFrom(tcp, "203.0.113.0/24"))
	bad := from("203.0.113.7", tcp, 443)
	for range 3 {
		if err := d.Rebalance([]int{1, 2}); err != nil {
			t.Fatal(err)
		}
		if s.wire.send(t, bad); reached(d) != 0 {
			t.Error("a denied source comes after a change of queues")
		}
	}
	if err := d.SetMAC(otherMAC); err != nil {
		t.Fatal(err)
	}
	other := slices.Clone(bad)
	copy(other, otherMAC)
	if s.wire.send(t, other); reached(d) != 0 {
		t.Error("a denied source comes to another MAC")
	}
	copy(other[26:], netip.MustParseAddr("203.0.114.7").AsSlice())
	if s.wire.send(t, other); reached(d) != 1 {
		t.Error("another source does not come to another MAC")
	}
	s.wire.send(t, bad)
	if n := len(s.netdev.drain()); n != 0 {
		t.Logf("%d frames to the former MAC are Linux's", n)
	}
	host := newSim(t, simnic.Config{}, kernel.Config{})
	h := host.openHost(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
	addRule(t, h, listener(tcp, hostV4, 443))
	r := dv.DropRule{From: netip.MustParsePrefix("192.0.2.7/32"), Proto: tcp, Port: 443,
		Mask: 1<<16 - 1, To: hostV4}
	drop := addDrop(t, h, r)
	for range 3 {
		if err := h.Rebalance([]int{2, 1}); err != nil {
			t.Fatal(err)
		}
		if host.wire.send(t, toHost(tcp, hostV4, 443)); reached(h) != 0 {
			t.Error("host mode: a denied source comes after a change of queues")
		}
	}
	if n, ok := drop.Counted(); !ok || n.Packets != 3 {
		t.Errorf("host mode: %+v, %v", n, ok)
	}
}

// TestDropRulesOfHost: in host mode a rule drops what another one leads here, and nothing of
// Linux's.
func TestDropRulesOfHost(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{})
	addRule(t, d, listener(tcp, hostV4, 443))
	addRule(t, d, listener(tcp, hostV4, 444))
	r := dv.DropRule{From: netip.MustParsePrefix("192.0.2.7/32"), Proto: tcp, Port: 443,
		Mask: 1<<16 - 1, To: hostV4}
	drop := addDrop(t, d, r)
	s.wire.send(t, toHost(tcp, hostV4, 443))
	if n, linux := reached(d), len(s.netdev.drain()); n != 0 || linux != 0 {
		t.Errorf("a denied source: %d frames to us, %d to Linux", n, linux)
	}
	for _, c := range []struct {
		name  string
		frame []byte
		ours  bool
	}{
		{"another port of ours", toHost(tcp, hostV4, 444), true},
		{"a port of Linux", toHost(tcp, hostV4, 22), false},
		{"another address", toHost(tcp, secondV4, 443), false},
		{"another protocol", toHost(udp, hostV4, 443), false},
		{"a fragment", fragment(toHost(tcp, hostV4, 443)), false},
	} {
		s.goes(t, d, c.name, c.frame, c.ours)
	}
	if err := drop.Close(); err != nil {
		t.Error(err)
	}
	s.goes(t, d, "after its end", toHost(tcp, hostV4, 443), true)
	wide := r
	wide.To = netip.Addr{}
	if _, err := d.AddDrop(wide); !errors.Is(err, dv.ErrConfig) {
		t.Errorf("a rule for Linux's frames, too: %v", err)
	}
}

// TestDropRulesRefused: a device without room says so, and a device that is closed takes none.
func TestDropRulesRefused(t *testing.T) {
	caps := simnic.DefaultCaps()
	caps.LogMaxFlows = 4
	s := newSim(t, simnic.Config{Caps: caps}, kernel.Config{})
	d := s.open(t, dv.Config{})
	var err error
	n := 0
	for ; n < 16 && err == nil; n++ {
		r := dropFrom(tcp, "203.0.113.0/32")
		r.From = netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), 32)
		_, err = d.AddDrop(r)
	}
	if !errors.Is(err, unix.ENOSPC) || n < 2 {
		t.Errorf("rule %d: %v", n, err)
	}
	for _, r := range []dv.DropRule{{}, dropFrom(1, "203.0.113.0/24"),
		{From: netip.PrefixFrom(hostV4, 8), Proto: tcp},
		{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: tcp, Port: 1},
		{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: tcp, To: hostV6}} {
		if _, err := d.AddDrop(r); !errors.Is(err, dv.ErrConfig) {
			t.Errorf("%v: %v", r, err)
		}
	}
}
