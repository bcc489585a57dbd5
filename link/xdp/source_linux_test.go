package xdp

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
)

// TestDropSources: what comes from a prefix has no place in a ring or socket, until the kernel is
// told otherwise; also behind a silence. Of a denied source 2,000 frames cost nothing.
func TestDropSources(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		dropper := p.(packet.SourceDropper)
		r := receiveAll(p)
		raw := w.rawSocket(t)
		to := func(src string, port uint16) []byte {
			a, us := netip.MustParseAddr(src), ourIP.Addr()
			if a.Is6() {
				us = ourIPv6.Addr()
			}
			return ipFrame(ourMAC, a, us, protoUDP, eth.UDP(9, port, eth.Payload(40)))
		}
		arrives := func(what string, again int, want ...uint16) {
			t.Helper()
			for range again {
				must(t, unix.Send(raw, to("203.0.113.7", 52), 0))
			}
			for _, f := range [][]byte{to("203.0.113.7", 53), to("203.0.113.7", 40000),
				to("203.0.114.7", 54), to("2001:db8:7::7", 55), to("203.0.114.7", 99)} {
				must(t, unix.Send(raw, f, 0))
			}
			var got []uint16
			for {
				f, at := r.next(t).Data, ethLen+ipv4Len
				if f[12] == typeIPv6>>8 {
					at = ethLen + ipv6Len
				}
				port := binary.BigEndian.Uint16(f[at+2:])
				if port == 99 {
					break
				}
				got = append(got, port)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: datagrams to ports %v came, want %v", what, got, want)
			}
		}
		drop := func(want int, all ...packet.SourceDrop) {
			t.Helper()
			if n, err := dropper.DropSources(all); err != nil || n != want {
				t.Errorf("%d of %d prefixes are dropped, want %d: %v", n, len(all), want, err)
			}
		}
		four := packet.SourceDrop{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP,
			Mask: 1 << 15}
		six := packet.SourceDrop{From: netip.MustParsePrefix("2001:db8:7::/64"), Proto: protoUDP,
			Mask: 1 << 15}
		arrives("at first", 0, 53, 54, 55, 40000)
		drop(2, four, six)
		arrives("denied", 2000, 54, 40000)
		must(t, p.Mute())
		must(t, p.Unmute())
		arrives("behind a silence", 0, 54, 40000)
		other := four
		other.Port, other.Mask = 40000, 1<<16-1
		drop(1, other)
		arrives("by another port", 0, 53, 54, 55)
		drop(0)
		arrives("at the end", 0, 53, 54, 55, 40000)
		must(t, p.Close())
		drop(0, four)
	})
}

// TestCountDropped: what the program has dropped is told by prefix and block of ports, once, also
// of what it drops no more, and behind the end. A muted port's program drops nothing.
func TestCountDropped(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	r := receiveAll(p)
	raw := w.rawSocket(t)
	from := netip.MustParsePrefix("203.0.113.0/24")
	low := packet.SourceDrop{From: from, Proto: protoTCP, Mask: 1 << 15}
	two := []packet.SourceDrop{
		{From: from, Proto: protoUDP, Port: 80, Mask: 1<<16 - 1},
		{From: from, Proto: protoUDP, Port: 443, Mask: 1<<16 - 1},
	}
	send := func(port uint16, n int) {
		t.Helper()
		for range n {
			must(t, unix.Send(raw, ipFrame(ourMAC, netip.MustParseAddr("203.0.113.9"),
				ourIP.Addr(), protoUDP, eth.UDP(9, port, eth.Payload(40))), 0))
		}
		must(t, unix.Send(raw, ipFrame(ourMAC, peerIP.Addr(), ourIP.Addr(), protoUDP,
			eth.UDP(9, 99, eth.Payload(40))), 0))
		r.next(t) // the last one has come, so all have passed the program
	}
	told := func(want map[packet.SourceDrop]uint64) {
		t.Helper()
		got := map[packet.SourceDrop]uint64{}
		p.CountDropped(func(d packet.SourceDrop, frames uint64) { got[d] += frames })
		if !maps.Equal(got, want) {
			t.Errorf("told of %v, want %v", got, want)
		}
	}
	drop := func(all ...packet.SourceDrop) {
		t.Helper()
		if n, err := p.DropSources(all); n != len(all) || err != nil {
			t.Errorf("%d of %d are dropped: %v", n, len(all), err)
		}
	}
	drop(two[0], two[1], low)
	told(map[packet.SourceDrop]uint64{})
	send(80, 5)
	send(443, 7)
	told(map[packet.SourceDrop]uint64{two[0]: 5, two[1]: 7})
	send(443, 2)
	told(map[packet.SourceDrop]uint64{two[1]: 2})
	send(80, 3)
	drop(two[0], low) // the block of ports changes, and the counts begin anew
	send(80, 4)
	told(map[packet.SourceDrop]uint64{two[0]: 7})
	send(80, 6)
	drop()
	must(t, p.Mute())
	drop(two...)
	must(t, p.Unmute())
	send(443, 1)
	told(map[packet.SourceDrop]uint64{two[0]: 6, two[1]: 1})
	must(t, p.Mute())
	if n := len(p.sources.held); n != 0 {
		t.Errorf("the program of a muted port drops from %d prefixes", n)
	}
	must(t, p.Unmute())
	send(443, 8)
	must(t, p.Close())
	told(map[packet.SourceDrop]uint64{two[1]: 8})
	told(map[packet.SourceDrop]uint64{})
}

// TestRefusedSources: where the kernel refuses the map, or the program that reads it, the port
// opens without, says so once, and receives all.
func TestRefusedSources(t *testing.T) {
	for name, refuse := range map[string]func() (int, error){
		"map": func() (int, error) { return -1, unix.EPERM },
		"program": func() (int, error) { // whose verifier sees that it reads behind the value
			return newMap(unix.BPF_MAP_TYPE_LPM_TRIE, sourceKeyLen, 8, 1, unix.BPF_F_NO_PREALLOC,
				"short")
		},
	} {
		for _, host := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, host %v", name, host), func(t *testing.T) {
				w := newWorld(t)
				p := w.open(t, Config{Config: packet.Config{Host: host}, newSources: refuse})
				d := packet.SourceDrop{From: netip.MustParsePrefix("203.0.113.0/24"),
					Proto: protoUDP, Mask: 1 << 15}
				n, err := p.DropSources(nil)
				if must(t, err); n != 0 {
					t.Errorf("%d of none are dropped", n)
				}
				n, err = p.DropSources([]packet.SourceDrop{d})
				if n != 1 || err == nil ||
					!strings.Contains(err.Error(), "drops nothing by source") {
					t.Errorf("%d are dropped by packet sockets: %v", n, err)
				}
				n, err = p.DropSources([]packet.SourceDrop{d})
				if must(t, err); n != 1 {
					t.Errorf("%d are dropped by packet sockets", n)
				}
				p.CountDropped(func(packet.SourceDrop, uint64) { t.Error("something is counted") })
				must(t, p.Mute())
				must(t, p.Unmute())
				if host {
					return
				}
				r := receiveAll(p)
				must(t, unix.Send(w.rawSocket(t), ipFrame(ourMAC, d.From.Addr(), ourIP.Addr(),
					protoUDP, eth.UDP(9, 53, eth.Payload(40))), 0))
				r.next(t)
			})
		}
	}
}

// TestManySources: of more prefixes than there is room for the program drops the first 2,048, and
// of one prefix the first four blocks of ports; the first time it says that more were wanted.
func TestManySources(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	var all []packet.SourceDrop
	for i := range maxSources + 10 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		d := packet.SourceDrop{From: netip.PrefixFrom(a, 32), Proto: protoTCP, Mask: 1 << 15}
		all = append(all, d)
		for port := range maxBlocks {
			if i > 0 {
				break
			}
			d.Port, d.Mask = uint16(port), 1<<16-1
			all = append(all, d)
		}
	}
	for i := range 3 {
		n, err := p.DropSources(all)
		if first := i == 0; n != maxSources+maxBlocks-1 ||
			(err != nil && strings.Contains(err.Error(), "has room for 1024")) != first {
			t.Errorf("%d of %d are dropped: %v", n, len(all), err)
		}
	}
	for range 2 {
		if n, err := p.DropSources(all[5:8]); n != 3 || err != nil {
			t.Errorf("%d of 3 are dropped: %v", n, err)
		}
	}
	if n := len(p.sources.held); n != 3 {
		t.Errorf("the program has %d prefixes, want 3", n)
	}
}

// TestSourcesChange changes what is dropped 300 times. A source beside it, whose address is near,
// is never dropped, and the denied one never comes while it stays denied.
func TestSourcesChange(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	r := receiveAll(p)
	raw := w.rawSocket(t)
	from := func(a netip.Addr) []byte {
		return ipFrame(ourMAC, a, ourIP.Addr(), protoUDP, eth.UDP(9, 53, eth.Payload(40)))
	}
	bad, good := netip.MustParseAddr("203.0.113.64"), netip.MustParseAddr("203.0.113.63")
	for i := range 300 {
		all := []packet.SourceDrop{{From: netip.PrefixFrom(bad, 26).Masked(), Proto: protoUDP,
			Mask: 1 << 15}}
		for n := range i % 7 { // others come and go, ahead of it and inside of it
			d := packet.SourceDrop{From: netip.PrefixFrom(bad.Next(), 32-n), Proto: protoTCP,
				Mask: 1 << 15}
			all = append(all, d)
			d.From = netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 112, byte(n)}), 32)
			all = append([]packet.SourceDrop{d}, all...)
		}
		must(t, unix.Send(raw, from(good), 0))
		n, err := p.DropSources(all)
		if must(t, err); n == 0 {
			t.Fatal("nothing is dropped")
		}
		must(t, unix.Send(raw, from(bad), 0))
		must(t, unix.Send(raw, from(good), 0))
		for range 2 {
			f := r.next(t).Data
			if src := netip.AddrFrom4([4]byte(f[26:30])); src != good {
				t.Fatalf("change %d: a datagram from %v came", i, src)
			}
		}
	}
}
