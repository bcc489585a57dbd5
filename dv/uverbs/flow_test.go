package uverbs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// TestFlowSpecBytes checks each condition at the offsets of the uAPI structs; all bytes not named
// are zero.
func TestFlowSpecBytes(t *testing.T) {
	six := func(b byte) (a [6]byte) {
		for i := range a {
			a[i] = b + byte(i)
		}
		return a
	}
	v6 := func(b byte) (a [16]byte) {
		for i := range a {
			a[i] = b + byte(i)
		}
		return a
	}
	all6, allv6 := [6]byte{255, 255, 255, 255, 255, 255}, [16]byte{}
	for i := range allv6 {
		allv6[i] = 0xff
	}
	for _, tc := range []struct {
		name string
		spec FlowSpec
		want string
	}{
		{"eth", EthMatch{Dst: six(0x10), DstMask: all6, Src: six(0x20), SrcMask: all6,
			EtherType: 0x86dd, VLAN: 0x0123, VLANMask: 0x0fff}.Spec(),
			"20000000 28000000 10111213 14152021 22232425 86dd0123 ffffffff ffffffff ffffffff " +
				"ffff0fff"},
		{"eth, nothing", EthMatch{}.Spec(),
			"20000000 28000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 " +
				"00000000"},
		{"ipv4", IPv4Match{Src: [4]byte{10, 0, 0, 1}, SrcMask: [4]byte{255, 255, 255, 255},
			Dst: [4]byte{10, 1, 0, 0}, DstMask: [4]byte{255, 255, 0, 0},
			Proto: 17, ProtoMask: 0xff, TOS: 0xb8, TOSMask: 0xfc}.Spec(),
			"30000000 20000000 0a000001 0a010000 11b80000 ffffffff ffff0000 fffc0000"},
		{"ipv6", IPv6Match{Src: v6(0x10), SrcMask: allv6, Dst: v6(0x30), DstMask: allv6,
			FlowLabel: 0x12345, FlowLabelMask: 0xfffff,
			NextHeader: 58, NextHeaderMask: 0xff, TrafficClass: 1, TrafficClassMask: 3}.Spec(),
			`31000000 58000000 10111213 14151617 18191a1b 1c1d1e1f 30313233 34353637 38393a3b 3c3d3e3f 00012345 3a010000
			 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 000fffff ff030000`},
		{"tcp", PortMatch{Dst: 443, DstMask: 0xffff, Src: 0x8000, SrcMask: 0x8000}.TCP(),
			"40000000 10000000 01bb8000 ffff8000"},
		{"is udp", PortMatch{}.UDP(), "41000000 10000000 00000000 00000000"},
		{"inner udp", PortMatch{}.UDP().Inner(), "41010000 10000000 00000000 00000000"},
		{"tag", Tag(0xabcdef), "00100000 10000000 efcdab00 00000000"},
		{"drop", Drop(), "01100000 08000000"},
		{"count", Count(&Counters{object{handle: 3}}), "03100000 10000000 03000000 00000000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			same(t, tc.name, tc.spec.raw, vec(t, tc.want))
			if tc.spec.wrong != "" {
				t.Error(tc.spec.wrong)
			}
		})
	}
}

func TestFlowHeader(t *testing.T) {
	f := newFixture(t)
	must[*Flow](t)(f.rss.CreateFlow(FlowAttr{Type: FlowNormal, Priority: 3, Port: 2, DontTrap: true,
		Specs: []FlowSpec{{raw: vec(t, "01100000 08000000")}, Tag(1)}}))
	c := f.k.last("CREATE_FLOW")
	h := byte(f.rss.Handle())
	same(t, "header", c.in[0][:24], []byte{0, 0, 0, 0, h, 0, 0, 0, 0, 0, 0, 0, 24, 0, 3,
		0, 2, 0, 0, 2, 2, 0, 0, 0})
	if c.in[0x1000] != nil || c.out[0x1001] != nil {
		t.Error("a driver part without counters")
	}
	must[*Flow](t)(f.rss.CreateFlow(FlowAttr{Type: FlowAllDefault}))
	same(t, "no conditions", f.k.last("CREATE_FLOW").in[0], []byte{0, 0, 0, 0, h, 0, 0, 0, 1, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0})
}

// TestDropFlow: a rule that drops what comes to a MAC from a prefix, and counts it, as one command.
func TestDropFlow(t *testing.T) {
	f := newFixture(t)
	must[*Flow](t)(f.rss.CreateFlow(FlowAttr{Specs: []FlowSpec{
		EthMatch{Dst: [6]byte{2, 0, 0, 0, 0, 1}, DstMask: ExactMAC}.Spec(),
		IPv4Match{Src: [4]byte{203, 0, 113, 0}, SrcMask: [4]byte{255, 255, 255, 0}}.Spec(),
		PortMatch{DstMask: 0x8000}.TCP(), Drop(), Count(f.counters)}}))
	c := f.k.last("CREATE_FLOW")
	same(t, "header", c.in[0][:24], []byte{0, 0, 0, 0, byte(f.rss.Handle()), 0, 0, 0, 0, 0, 0, 0,
		112, 0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0})
	want := vec(t, `20000000 28000000 02000000 00010000 00000000 00000000 ffffffff ffff0000 00000000 00000000
		30000000 20000000 cb007100 00000000 00000000 ffffff00 00000000 00000000
		40000000 10000000 00000000 80000000
		01100000 08000000
		03100000 10000000 00000000 00000000`)
	want[len(want)-8] = byte(f.counters.Handle())
	same(t, "specifications", c.in[0][24:], want)
}

// TestFlowCounters: the driver's part points to a table of counts and their indexes.
func TestFlowCounters(t *testing.T) {
	f := newFixture(t)
	var table []byte
	f.k.patch = func(c *call) {
		if c.name == "CREATE_FLOW" {
			table = append(table, mmio.View(u64(c.in[0x1000][8:]), 16).Bytes()...)
		}
	}
	must[*Flow](t)(f.rss.CreateFlow(FlowAttr{Specs: []FlowSpec{Count(f.counters)}}))
	uhw := f.k.last("CREATE_FLOW").in[0x1000]
	same(t, "counts of the driver part", append(uhw[:8:8], uhw[16:]...),
		[]byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	same(t, "table", table, []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})
	if h := f.k.last("CREATE_FLOW").in[0][32:36]; u32(h) != f.counters.Handle() {
		t.Errorf("counters handle % x", h)
	}
}

// TestMissFlow: a matcher with the mask, then a rule with the value, at the offsets of
// fte_match_set_lyr_2_4; both are destroyed, the rule first.
func TestMissFlow(t *testing.T) {
	exact := [6]byte{255, 255, 255, 255, 255, 255}
	for _, tc := range []struct {
		name        string
		match       HeaderMatch
		value, mask string
	}{
		{"nothing", HeaderMatch{}, "", ""},
		{"fragments of a VLAN", HeaderMatch{Dst: [6]byte{0x10, 0x11, 0x12, 0x13, 0x14, 0x15},
			DstMask: exact, VLAN: 0x123, VLANMask: 0xfff, Fragment: true},
			"00000000 00000000 10111213 14150123 0000a000 00000000",
			"00000000 00000000 ffffffff ffff0fff 0000a000 00000000"},
		{"TCP over IPv4", HeaderMatch{IPVersion: 4, Addr: []byte{10, 0, 0, 1}, Proto: 6,
			Port: 443, PortMask: 0xffff},
			"00000000 00000000 00000000 00000000 06000800 000001bb 00000000 00000000 " +
				"00000000 00000000 00000000 00000000 00000000 00000000 00000000 0a000001",
			"00000000 00000000 00000000 00000000 ff001e00 0000ffff 00000000 00000000 " +
				"00000000 00000000 00000000 00000000 00000000 00000000 00000000 ffffffff"},
		{"UDP over IPv6", HeaderMatch{IPVersion: 6, Addr: []byte{0xfd, 15: 2}, Proto: 17,
			Port: 0xf000, PortMask: 0xff00},
			"00000000 00000000 00000000 00000000 11000c00 00000000 00000000 0000f000 " +
				"00000000 00000000 00000000 00000000 fd000000 00000000 00000000 00000002",
			"00000000 00000000 00000000 00000000 ff001e00 00000000 00000000 0000ff00 " +
				"00000000 00000000 00000000 00000000 ffffffff ffffffff ffffffff ffffffff"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			rule := must[*MissFlow](t)(f.c.CreateMissFlow(3, tc.match))
			whole := func(s string) []byte { return append(vec(t, s), make([]byte, 64)...)[:64] }
			m, r := f.k.last("FLOW_MATCHER_CREATE"), f.k.last("CREATE_RAW_FLOW")
			same(t, "mask", m.in[0x1001], whole(tc.mask))
			same(t, "priority", m.in[0x1002], []byte{3, 0})
			same(t, "criteria", m.in[0x1003], []byte{1})
			same(t, "value", r.in[0x1001], whole(tc.value))
			same(t, "flags", r.in[0x1009], []byte{1, 0, 0, 0})
			if f.k.handles[u32(r.in[0x1004])] != "MATCHER" {
				t.Errorf("matcher handle % x", r.in[0x1004])
			}
			for range 2 {
				if err := rule.Close(); err != nil {
					t.Error(err)
				}
			}
			if n := f.k.count("MATCHER") + f.k.count("FLOW"); n != 1 { // the fixture's rule
				t.Errorf("%d matchers and rules are left", n)
			}
		})
	}
}

// TestMissFlowRefused: nothing is left of a rule that is refused.
func TestMissFlowRefused(t *testing.T) {
	for _, name := range []string{"FLOW_MATCHER_CREATE", "CREATE_RAW_FLOW"} {
		f := newFixture(t)
		f.k.refuse = func(c *call) error {
			if c.name == name {
				return unix.EOPNOTSUPP
			}
			return nil
		}
		if _, err := f.c.CreateMissFlow(0, HeaderMatch{}); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v", name, err)
		}
		if n := f.k.count("MATCHER"); n != 0 {
			t.Errorf("%s: %d matchers are left", name, n)
		}
	}
}

// count is how many objects of a kind exist.
func (k *fakeKernel) count(kind string) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, have := range k.handles {
		if have == kind {
			n++
		}
	}
	return n
}
