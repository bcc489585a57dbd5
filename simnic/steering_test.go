package simnic

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// world is a NIC with a wire, a netdev port and some receive queues, all
// recorded.
type world struct {
	t      testing.TB
	nic    *NIC
	wire   *recorder
	netdev *recorder
	buf    *testBuf
}

type testBuf struct {
	key  *MKey
	addr uint64
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	cfg.MAC = []byte{2, 0, 0, 0, 0, 0xee}
	w := &world{t: t, nic: newNIC(t, cfg), wire: &recorder{}, netdev: &recorder{}}
	if err := w.nic.ConnectWire(w.wire); err != nil {
		t.Fatal(err)
	}
	if err := w.nic.ConnectNetdev(w.netdev); err != nil {
		t.Fatal(err)
	}
	w.nic.SetLoopback(true, true)
	m := mem(t, 1<<16)
	w.buf = &testBuf{newKey(t, w.nic, m, nil), m.Addr()}
	return w
}

// sink is a receive queue of transport domain td behind a TIR.
type sink struct {
	cq  *testCQ
	tir *TIR
}

func (w *world) sink(td uint32) *sink {
	cq := newCQ(w.t, w.nic, 6, nil)
	rq := newRQ(w.t, w.nic, cq, 5, 4, nil)
	for range 32 {
		rq.post(seg(2048, w.buf.key.Key(), w.buf.addr))
	}
	return &sink{cq, newTIR(w.t, w.nic, TIRAttr{TD: td, RQ: rq.RQ})}
}

// got consumes completions and returns their number; tag is the last one's flow tag.
func (s *sink) got() (n int, tag uint32) {
	for e := s.cq.poll(); e != nil; e = s.cq.poll() {
		n++
		tag = uint32(e[0x39])<<16 | uint32(be16(e[0x3a:]))
	}
	return n, tag
}

var (
	macNetdev = [6]byte{2, 0, 0, 0, 0, 0xee}
	macThird  = [6]byte{2, 0, 0, 0, 0, 0x33}
	macBcast  = [6]byte{255, 255, 255, 255, 255, 255}
	macMcast  = [6]byte{1, 0, 0x5e, 0, 0, 1}
	macExact  = macBcast
	macGroup  = [6]byte{1}
)

// to is FRAME60 to another address, from one.
func to(dst, src [6]byte) []byte {
	f := append([]byte(nil), frame60...)
	copy(f, dst[:])
	copy(f[6:], src[:])
	return f
}

func dstMatch(value, mask [6]byte) (m Match) {
	m.SetDstMAC(value, mask)
	return m
}

func (w *world) flow(a FlowAttr) *Flow {
	w.t.Helper()
	f, err := w.nic.CreateFlow(a)
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

func TestSteeringWhoGetsIt(t *testing.T) {
	type expect struct{ a, b, netdev int }
	tests := []struct {
		name  string
		flows func(a, b *sink) []FlowAttr
		dst   [6]byte
		want  expect
		miss  uint64
	}{
		{name: "our MAC", dst: macTwo, want: expect{a: 1}, flows: func(a, _ *sink) []FlowAttr {
			return []FlowAttr{{Match: dstMatch(macTwo, macExact), TIR: a.tir}}
		}},
		{name: "netdev's MAC", dst: macNetdev, want: expect{netdev: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macTwo, macExact), TIR: a.tir}}
			}},
		{name: "a third MAC", dst: macThird, miss: 1, flows: func(a, _ *sink) []FlowAttr {
			return []FlowAttr{{Match: dstMatch(macTwo, macExact), TIR: a.tir}}
		}},
		{name: "broadcast, no rule", dst: macBcast, want: expect{netdev: 1},
			flows: func(a, _ *sink) []FlowAttr { return nil }},
		{name: "broadcast, copied", dst: macBcast, want: expect{a: 1, netdev: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macBcast, macExact), TIR: a.tir, DontTrap: true}}
			}},
		{name: "broadcast, taken", dst: macBcast, want: expect{a: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macBcast, macExact), TIR: a.tir}}
			}},
		{name: "multicast, copied by the group bit", dst: macMcast, want: expect{a: 1, netdev: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macGroup, macGroup), TIR: a.tir, DontTrap: true}}
			}},
		{name: "merged rules copy", dst: macTwo, want: expect{a: 1, b: 1},
			flows: func(a, b *sink) []FlowAttr {
				m := dstMatch(macTwo, macExact)
				return []FlowAttr{{Match: m, TIR: a.tir}, {Match: m, TIR: b.tir}}
			}},
		{name: "same rule twice copies once", dst: macTwo, want: expect{a: 1},
			flows: func(a, b *sink) []FlowAttr {
				m := dstMatch(macTwo, macExact)
				return []FlowAttr{{Match: m, TIR: a.tir}, {Match: m, TIR: a.tir}}
			}},
		{name: "first priority wins", dst: macTwo, want: expect{b: 1},
			flows: func(a, b *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macTwo, macExact), TIR: a.tir, Priority: 3},
					{TIR: b.tir, Priority: 2}}
			}},
		{name: "copy, then a later priority", dst: macTwo, want: expect{a: 1, b: 1},
			flows: func(a, b *sink) []FlowAttr {
				m := dstMatch(macTwo, macExact)
				return []FlowAttr{{Match: m, TIR: a.tir, Priority: 1, DontTrap: true},
					{Match: m, TIR: b.tir, Priority: 1}}
			}},
		{name: "two copies in two priorities", dst: macBcast, want: expect{a: 2, netdev: 1},
			flows: func(a, b *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macBcast, macExact), TIR: a.tir, DontTrap: true},
					{Match: dstMatch(macGroup, macGroup), TIR: a.tir, Priority: 1, DontTrap: true}}
			}},
		{name: "two copies in one priority: the first rule", dst: macBcast,
			want: expect{a: 1, netdev: 1}, flows: func(a, b *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macBcast, macExact), TIR: a.tir, DontTrap: true},
					{Match: dstMatch(macGroup, macGroup), TIR: b.tir, DontTrap: true}}
			}},
		{name: "masks keep their order in a table", dst: macTwo, want: expect{a: 1},
			flows: func(a, b *sink) []FlowAttr {
				first := [6]byte{255}
				return []FlowAttr{{Match: dstMatch(macTwo, macExact), TIR: a.tir},
					{Match: dstMatch([6]byte{4}, first), TIR: b.tir},
					{Match: dstMatch([6]byte{2}, first), TIR: b.tir}}
			}},
		{name: "a later rule joins its mask", dst: macTwo, want: expect{a: 1},
			flows: func(a, b *sink) []FlowAttr {
				first := [6]byte{255}
				return []FlowAttr{{Match: dstMatch(macThird, macExact), TIR: b.tir},
					{Match: dstMatch([6]byte{2}, first), TIR: b.tir},
					{Match: dstMatch(macTwo, macExact), TIR: a.tir}}
			}},
		{name: "multicast that traps comes after all priorities", dst: macBcast, want: expect{b: 1},
			flows: func(a, b *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macBcast, macExact), TIR: a.tir},
					{TIR: b.tir, Priority: 15}}
			}},
		{name: "the netdev's MAC can be taken", dst: macNetdev, want: expect{a: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Match: dstMatch(macNetdev, macExact), TIR: a.tir}}
			}},
		{name: "leftovers of the netdev", dst: macThird, want: expect{a: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Type: FlowAllDefault, TIR: a.tir}}
			}},
		{name: "no leftovers of what the netdev takes", dst: macNetdev, want: expect{netdev: 1},
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Type: FlowAllDefault, TIR: a.tir}}
			}},
		{name: "multicast leftovers take no unicast", dst: macThird, miss: 1,
			flows: func(a, _ *sink) []FlowAttr {
				return []FlowAttr{{Type: FlowMulticastDefault, TIR: a.tir}}
			}},
		{name: "missed: past the priorities behind", dst: macNetdev, want: expect{netdev: 1},
			flows: func(a, _ *sink) []FlowAttr {
				m := dstMatch(macNetdev, macExact)
				return []FlowAttr{{Match: m, Miss: true}, {Match: m, TIR: a.tir, Priority: 1}}
			}},
		{name: "missed, but a priority before takes it", dst: macNetdev, want: expect{a: 1},
			flows: func(a, _ *sink) []FlowAttr {
				m := dstMatch(macNetdev, macExact)
				return []FlowAttr{{Match: m, Miss: true, Priority: 1}, {Match: m, TIR: a.tir}}
			}},
		{name: "missed to nobody", dst: macTwo, miss: 1, flows: func(a, _ *sink) []FlowAttr {
			m := dstMatch(macTwo, macExact)
			return []FlowAttr{{Match: m, Miss: true}, {Match: m, TIR: a.tir, Priority: 1}}
		}},
		{name: "missed to the leftovers", dst: macTwo, want: expect{b: 1},
			flows: func(a, b *sink) []FlowAttr {
				m := dstMatch(macTwo, macExact)
				return []FlowAttr{{Match: m, Miss: true}, {Match: m, TIR: a.tir, Priority: 1},
					{Type: FlowAllDefault, TIR: b.tir}}
			}},
		// add_rule_fg in linux 6.12 drivers/net/ethernet/mellanox/mlx5/core/fs_core.c appends
		// destinations, the next namespace's table included.
		{name: "missed and taken by one entry", dst: macNetdev, want: expect{a: 1, netdev: 1},
			flows: func(a, _ *sink) []FlowAttr {
				m := dstMatch(macNetdev, macExact)
				return []FlowAttr{{Match: m, TIR: a.tir, HasTag: true, Tag: 5},
					{Match: m, Miss: true}, {Match: m, Miss: true}}
			}},
		{name: "dropped", dst: macNetdev, flows: func(a, _ *sink) []FlowAttr {
			return []FlowAttr{{Match: dstMatch(macNetdev, macExact), Drop: true}}
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, Config{})
			a, b := w.sink(1), w.sink(2)
			for _, f := range tc.flows(a, b) {
				w.flow(f)
			}
			w.wire.recv([]frame.Frame{{Data: to(tc.dst, macThird)}})
			na, _ := a.got()
			nb, _ := b.got()
			got := expect{na, nb, len(w.netdev.drain())}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if c := w.nic.Counters(); c.Drops.SteerMissed != tc.miss {
				t.Errorf("%+v", c.Drops)
			}
			if n := len(w.wire.drain()); n != 0 {
				t.Errorf("%d frames went back to the wire", n)
			}
		})
	}
}

func TestSteeringMatches(t *testing.T) {
	v6 := dump(`02000000 00020200 00000001 86dd 6ab12345 00101140 fd000000000000000000000000000001 fd000000000000000000000000000002
		03e807d0 00100000 0001020304050607`)
	tagged := append(append(append([]byte(nil), frame60[:12]...), 0x81, 0, 0x60, 0x64),
		frame60[12:]...)
	frag := append([]byte(nil), frame60...)
	frag[20] = 0x20
	tests := []struct {
		name string
		set  func(m *Match)
		yes  [][]byte
		no   [][]byte
	}{
		{"source MAC", func(m *Match) { m.SetSrcMAC([6]byte{2, 0, 0, 0, 0, 1}, macExact) },
			[][]byte{frame60}, [][]byte{to(macTwo, macThird)}},
		{"type behind the tag", func(m *Match) { m.SetEtherType(0x800, 0xffff) },
			[][]byte{frame60, tagged}, [][]byte{v6}},
		{"tag", func(m *Match) { m.SetVLAN(0x64, 0xfff) }, [][]byte{tagged}, [][]byte{frame60}},
		{"tag and priority", func(m *Match) { m.SetVLAN(0x4064, 0xffff) }, nil,
			[][]byte{tagged, frame60}},
		{"any tag", func(m *Match) { m.SetVLAN(0, 0) }, [][]byte{tagged, frame60}, nil},
		{"IP version", func(m *Match) { m.SetIPVersion(6) }, [][]byte{v6}, [][]byte{frame60}},
		{"protocol", func(m *Match) { m.SetProto(17, 0xff) }, [][]byte{frame60, v6, frag},
			[][]byte{tcpFrame72}},
		{"addresses", func(m *Match) {
			m.SetIPv4([4]byte{10}, [4]byte{255}, [4]byte{10, 0, 0, 2}, [4]byte{255, 255, 255, 255})
		}, [][]byte{frame60}, [][]byte{tcpFrame72, v6}},
		{"IPv6 addresses", func(m *Match) {
			m.SetIPv6([16]byte{0xfd}, [16]byte{255}, [16]byte{15: 2}, [16]byte{15: 255})
		}, [][]byte{v6}, [][]byte{frame60}},
		{"flow label", func(m *Match) { m.SetFlowLabel(0x12345, 0xfffff) }, [][]byte{v6},
			[][]byte{frame60}},
		{"traffic class", func(m *Match) { m.SetTOS(0xab, 0xff) }, [][]byte{v6}, [][]byte{frame60}},
		{"UDP", func(m *Match) { m.SetUDP(0, 0, 0, 0) }, [][]byte{frame60, v6, tagged},
			[][]byte{tcpFrame72, frag}},
		{"UDP ports", func(m *Match) { m.SetUDP(1000, 0xffff, 2000, 0xffff) },
			[][]byte{frame60, v6}, [][]byte{flowFrame(1, 60)}},
		{"TCP port", func(m *Match) { m.SetTCP(0, 0, 1766, 0xffff) }, [][]byte{tcpFrame72},
			[][]byte{frame60}},
	}
	for _, tc := range tests {
		var m Match
		tc.set(&m)
		try := func(f []byte, want bool) {
			p := frame.Parse(f)
			var k MatchKey
			matchKey(&p, f, &k)
			if m.Takes(&k) != want {
				t.Errorf("%s: takes % x: %v", tc.name, f[:20], !want)
			}
		}
		for _, f := range tc.yes {
			try(f, true)
		}
		for _, f := range tc.no {
			try(f, false)
		}
	}
}

func TestPortLimits(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.sink(1)
	w.flow(FlowAttr{Match: dstMatch(macTwo, macExact), TIR: s.tir})
	give := func(n int) int {
		f := append(to(macTwo, macThird), make([]byte, 2000)...)[:n]
		w.wire.recv([]frame.Frame{{Data: f}})
		k, _ := s.got()
		return k
	}
	for _, tc := range []struct{ n, want int }{{13, 0}, {14, 1}, {59, 1}, {1518, 1}, {1519, 0}} {
		if got := give(tc.n); got != tc.want {
			t.Errorf("%d bytes: %d delivered", tc.n, got)
		}
	}
	w.nic.SetLink(false)
	if give(60) != 0 {
		t.Error("delivered with the link down")
	}
	c := w.nic.Counters()
	if c.Drops.WireRunt != 1 || c.Drops.WireOversize != 1 || c.Drops.LinkDown != 1 {
		t.Errorf("%+v", c.Drops)
	}
}

func TestClassifier(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.sink(1), w.sink(2)
	w.nic.SetClassifier(func(k *MatchKey, out []Destination) []Destination {
		if fieldDstMAC.getField(k) == macBits(macThird[:]) {
			return out
		}
		return append(out, Destination{TIR: a.tir, Tag: 1}, Destination{TIR: b.tir, Tag: 2})
	})
	w.wire.recv([]frame.Frame{{Data: to(macNetdev, macThird)}, {Data: to(macThird, macTwo)}})
	na, ta := a.got()
	nb, tb := b.got()
	if na != 1 || ta != 1 || nb != 1 || tb != 2 || len(w.netdev.drain()) != 0 {
		t.Errorf("a %d tag %d, b %d tag %d", na, ta, nb, tb)
	}
	if c := w.nic.Counters(); c.Drops.SteerMissed != 1 {
		t.Errorf("%+v", c.Drops)
	}
	w.nic.SetClassifier(nil)
	w.wire.recv([]frame.Frame{{Data: to(macNetdev, macThird)}})
	if len(w.netdev.drain()) != 1 {
		t.Error("the netdev port is not back")
	}
}
