package xdp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
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
			return ipFrame(ourMAC, a, us, protoUDP, udp(9, port, payload(40)))
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

// TestManySources: of more prefixes than there is room for the program drops the first 4,096, and
// of two that differ in their ports alone the first.
func TestManySources(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	var all []packet.SourceDrop
	for i := range maxSources + 10 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		d := packet.SourceDrop{From: netip.PrefixFrom(a, 32), Proto: protoTCP, Mask: 1 << 15}
		all = append(all, d)
		if i == 0 {
			d.Port, d.Mask = 1, 1<<16-1
			all = append(all, d)
		}
	}
	for range 2 {
		n, err := p.DropSources(all)
		if must(t, err); n != maxSources {
			t.Errorf("%d of %d sources are dropped, want %d", n, len(all), maxSources)
		}
	}
	if n, err := p.DropSources(all[5:8]); n != 3 || err != nil {
		t.Errorf("%d of 3 are dropped: %v", n, err)
	}
}
