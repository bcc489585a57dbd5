package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// begin gives the time at which tests of fragments begin.
var begin = time.Unix(1e9, 0)

// fragmentTable returns that of a port of UDP and one of TCP, of each version of IP.
func fragmentTable() *portTable {
	return newPortTable([]Ports{{UDP: true, Addr: ourIP.Addr(), First: 53, Last: 53},
		{UDP: true, Addr: ourIPv6.Addr(), First: 53, Last: 53},
		{Addr: ourIP.Addr(), First: 80, Last: 80}})
}

// fragmentsOf cuts a datagram into fragments of so many bytes, in frames.
func fragmentsOf(v6 bool, proto byte, datagram []byte, id uint32, size int) (frames [][]byte) {
	for at := 0; at < len(datagram); at += size {
		end := min(at+size, len(datagram))
		frames = append(frames, fragmentOf(v6, proto, datagram[at:end], id, at,
			end < len(datagram)))
	}
	return frames
}

func fragmentOf(v6 bool, proto byte, part []byte, id uint32, at int, more bool) []byte {
	if v6 {
		field := uint16(at)
		if more {
			field |= 1
		}
		h := binary.BigEndian.AppendUint16([]byte{proto, 0}, field)
		h = binary.BigEndian.AppendUint32(h, id)
		return eth.Ethernet(netdev, peerMAC, typeIPv6,
			eth.IP(peerIPv6.Addr(), ourIPv6.Addr(), extFragment, append(h, part...)))
	}
	p := eth.IP(peerIP.Addr(), ourIP.Addr(), proto, part)
	field := uint16(at / 8)
	if more {
		field |= moreFragments4
	}
	binary.BigEndian.PutUint16(p[4:], uint16(id))
	binary.BigEndian.PutUint16(p[6:], field)
	return eth.Ethernet(netdev, peerMAC, typeIPv4, p)
}

// take adds frames at a time, and returns what is handed on.
func (f *fragments) take(t *testing.T, at time.Time, frames ...[]byte) (whole [][]byte) {
	t.Helper()
	for i, frame := range frames {
		p, ok := parseFragment(frame)
		if !ok {
			t.Fatalf("frame %d is no fragment: % x", i, frame)
		}
		got, _ := f.add(fragmentTable(), &p, frame, at)
		whole = append(whole, got...)
	}
	return whole
}

// TestFragments takes datagrams of every length and order of fragments: of ours all come, in order,
// once the last has; of others none is kept.
func TestFragments(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var f fragments
	for i := range 2000 {
		v6, ours := i%2 == 0, i%3 != 0
		port, proto := uint16(53), byte(protoUDP)
		if !ours {
			port = 54
		}
		head := eth.UDP(7, port, nil)
		if !v6 && i%5 == 0 {
			proto, head = protoTCP, eth.TCP(7, port+27, 2, nil)
		}
		d := append(head, eth.Payload(random.IntN(4000))...)
		frames := fragmentsOf(v6, proto, d, uint32(i), 8*(1+random.IntN(180)))
		if len(frames) == 1 {
			continue
		}
		order := random.Perm(len(frames))
		if i%7 == 0 { // one comes twice
			order = slices.Insert(order, random.IntN(len(order)), order[0])
		}
		var sent [][]byte
		for _, j := range order {
			sent = append(sent, frames[j])
		}
		whole := f.take(t, begin, sent...)
		var want [][]byte
		if ours {
			want = frames
		}
		if !slices.EqualFunc(whole, want, bytes.Equal) {
			t.Fatalf("datagram %d, ours %v, %d fragments in order %v: %d came", i, ours,
				len(frames), order, len(whole))
		}
		for _, g := range whole {
			if slices.ContainsFunc(frames, func(f []byte) bool { return &f[0] == &g[0] }) {
				t.Fatal("a frame that is handed on is the receiver's memory")
			}
		}
	}
	f.forgetExpired(begin.Add(time.Hour))
	if len(f.byKey) != 0 || f.oldest.Len() != 0 || f.bytes != 0 {
		t.Errorf("%d datagrams, %d by age, of %d bytes are left", len(f.byKey), f.oldest.Len(),
			f.bytes)
	}
}

// TestFragmentsWait requires that fragments wait as long as Linux has them wait, and that a flood
// of them takes no more memory than they may.
func TestFragmentsWait(t *testing.T) {
	for _, c := range []struct {
		v6    bool
		waits time.Duration
	}{{false, fragmentTime4}, {true, fragmentTime6}} {
		var f fragments
		frames := fragmentsOf(c.v6, protoUDP, eth.UDP(7, 53, eth.Payload(100)), 1, 64)
		if got := f.take(t, begin, frames[1]); len(got) != 0 {
			t.Fatal("came without the first")
		}
		if got := f.take(t, begin.Add(c.waits-1), frames[0]); len(got) != 2 {
			t.Errorf("IPv6 %v: %d came in time, want 2", c.v6, len(got))
		}
		f.take(t, begin, frames[1])
		if got := f.take(t, begin.Add(c.waits), frames[0]); len(got) != 0 || f.discarded() != 1 {
			t.Errorf("IPv6 %v: %d came late; %d discarded", c.v6, len(got), f.discarded())
		}
	}
	var f fragments
	last := fragmentOf(false, protoUDP, eth.Payload(1000), 0, 1000, false)
	for id := range uint32(20000) {
		binary.BigEndian.PutUint16(last[ethLen+4:], uint16(id))
		f.take(t, begin, last)
		if f.bytes > maxFragmentBytes {
			t.Fatalf("%d bytes are kept", f.bytes)
		}
	}
	if f.discarded() < 10000 || len(f.byKey) < 2000 {
		t.Errorf("%d discarded, %d kept", f.discarded(), len(f.byKey))
	}
}

// TestFragmentsRefused lists fragments that no datagram is made of.
func TestFragmentsRefused(t *testing.T) {
	whole := eth.UDP(7, 53, eth.Payload(56))
	of := func(v6 bool, cuts ...[2]int) (frames [][]byte) {
		for _, c := range cuts {
			frames = append(frames, fragmentOf(v6, protoUDP, whole[c[0]:c[1]], 9, c[0], c[1] < 64))
		}
		return frames
	}
	for _, v6 := range []bool{false, true} {
		for _, cuts := range [][][2]int{
			{{0, 32}, {24, 64}}, {{32, 64}, {0, 40}}, {{16, 32}, {0, 32}, {32, 64}},
			{{0, 8}, {16, 24}, {0, 24}, {24, 64}},
		} {
			var f fragments
			if got := f.take(t, begin, of(v6, cuts...)...); len(got) != 0 {
				t.Errorf("IPv6 %v: %v overlap, %d came", v6, cuts, len(got))
			}
		}
		for name, frame := range map[string][]byte{
			"beyond the longest packet": fragmentOf(v6, protoUDP, eth.Payload(16), 1, 65528, false),
			"of 9 bytes":                fragmentOf(v6, protoUDP, eth.Payload(9), 1, 0, true),
			"cut off":                   fragmentOf(v6, protoUDP, eth.Payload(16), 1, 0, true)[:40],
			"no fragment":               eth.Ethernet(netdev, peerMAC, typeARP, make([]byte, 46)),
		} {
			if p, ok := parseFragment(frame); ok {
				t.Errorf("IPv6 %v: %s is taken: %+v", v6, name, p)
			}
		}
	}
}

// TestBehindExtensions looks at IPv6 packets with extension headers to a port of ours.
func TestBehindExtensions(t *testing.T) {
	table, options := fragmentTable(), []byte{0, 0, 1, 4, 0, 0, 0, 0}
	with := func(first byte, headers ...[]byte) []byte {
		return eth.Ethernet(netdev, peerMAC, typeIPv6, eth.IP(peerIPv6.Addr(), ourIPv6.Addr(),
			first,
			append(slices.Concat(headers...), eth.UDP(7, 53, []byte("x"))...)))
	}
	next := func(h []byte, proto byte) []byte {
		h = bytes.Clone(h)
		h[0] = proto
		return h
	}
	option := func(kind byte) []byte { return []byte{protoUDP, 0, kind, 4, 0, 0, 0, 0} }
	for _, c := range []struct {
		name string
		ours bool
		f    []byte
	}{
		{"none", true, with(protoUDP)},
		{"hop-by-hop", true, with(extHopByHop, next(options, protoUDP))},
		{"destination", true, with(extDestination, next(options, protoUDP))},
		{"both", true, with(extHopByHop, next(options, extDestination),
			next(options, protoUDP))},
		{"hop-by-hop in the second place", false, with(extDestination, next(options, extHopByHop),
			next(options, protoUDP))},
		{"a route that ends", true, with(extRouting, []byte{protoUDP, 0, 99, 0, 0, 0, 0, 0})},
		{"a route", false, with(extRouting, []byte{protoUDP, 0, 99, 1, 0, 0, 0, 0})},
		{"an option to be skipped", true, with(extDestination, option(0x1e))},
		{"an option to be discarded", false, with(extDestination, option(0x5e))},
		{"an option to be answered", false, with(extDestination, option(0x9e))},
		{"an option that is cut off", false, with(extDestination,
			[]byte{protoUDP, 0, 1, 5, 0, 0, 0, 0})},
		{"longer than the packet", false, with(extDestination,
			[]byte{protoUDP, 9, 1, 4, 0, 0, 0, 0})},
		{"another port", false, eth.Ethernet(netdev, peerMAC, typeIPv6, eth.IP(peerIPv6.Addr(),
			ourIPv6.Addr(), extDestination, append(next(options, protoUDP),
				eth.UDP(7, 54, []byte("x"))...)))},
	} {
		if got := table.isOurs(c.f); got != c.ours {
			t.Errorf("%s: ours is %v", c.name, got)
		}
	}
}

// FuzzFragments takes any frames: what is handed on are fragments that were given, and nothing is
// kept beyond its time.
func FuzzFragments(f *testing.F) {
	for i, v6 := range []bool{false, true} {
		a := fragmentsOf(v6, protoUDP, eth.UDP(7, 53, eth.Payload(100)), uint32(i), 64)
		f.Add(a[0], a[1])
		f.Add(a[1], a[0])
	}
	for _, frame := range hostFrames() {
		f.Add(frame.bytes, frame.bytes)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var kept fragments
		for _, frame := range [][]byte{a, b} {
			p, ok := parseFragment(frame)
			if !ok {
				continue
			}
			whole, _ := kept.add(fragmentTable(), &p, frame, begin)
			for _, w := range whole {
				if !bytes.Equal(w, a) && !bytes.Equal(w, b) {
					t.Fatalf("handed on: % x", w)
				}
			}
		}
		kept.forgetExpired(begin.Add(time.Hour))
		if kept.bytes != 0 || len(kept.byKey) != 0 {
			t.Fatal(fmt.Sprint(kept.bytes, " bytes are left"))
		}
	})
}
