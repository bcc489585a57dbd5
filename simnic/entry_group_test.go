package simnic

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// tcpMatch matches TCP to an IPv4 address and a port.
func tcpMatch(addr [4]byte, port, mask uint16) (m Match) {
	m.SetIPVersion(4)
	m.SetIPv4([4]byte{}, [4]byte{}, addr, [4]byte{255, 255, 255, 255})
	m.SetTCP(0, 0, port, mask)
	return m
}

// TestRandomRules compares the tables with a list of the rules in force that is searched from its
// beginning: the entry that a frame finds, where it is one of several with other masks, and the
// destinations that stay inside.
func TestRandomRules(t *testing.T) {
	w := newWorld(t, Config{})
	tirs := []*TIR{w.sink(1).tir, w.sink(2).tir, w.sink(3).tir}
	r := rand.New(rand.NewPCG(1, 2))
	random := func() Match {
		low := byte(r.IntN(40))
		switch r.IntN(4) {
		case 0:
			return dstMatch([6]byte{2, 0, 0, 0, 0, low}, macExact)
		case 1:
			return tcpMatch([4]byte{10, 0, 0, 1}, uint16(low)<<8, 0xff00)
		case 2:
			return tcpMatch([4]byte{10, 0, 0, low & 3}, uint16(low)<<7, 0xffff)
		}
		return tcpMatch([4]byte{10, 0, 0, 1}, uint16(low)<<8|uint16(low), 0xffff)
	}
	var flows []*Flow
	var masks []MatchKey // of the rules in force, in order of their appearance
	hasMask := func(mask MatchKey) bool {
		return slices.ContainsFunc(flows, func(f *Flow) bool { return f.attr.Match.Mask == mask })
	}
	first := func(k *MatchKey) (to []*TIR) {
		for _, mask := range masks {
			for _, f := range flows {
				if f.attr.Match.Mask == mask && f.attr.Match.Takes(k) &&
					!slices.Contains(to, f.attr.TIR) {
					to = append(to, f.attr.TIR)
				}
			}
			if to != nil {
				return to
			}
		}
		return nil
	}
	found, most := 0, 0
	for step := range 6000 {
		adds := 7
		if step/1000%2 == 1 {
			adds = 3
		}
		if r.IntN(10) < adds || len(flows) == 0 {
			m := random()
			if !hasMask(m.Mask) {
				masks = append(masks, m.Mask)
			}
			flows = append(flows, w.flow(FlowAttr{Match: m, TIR: tirs[r.IntN(len(tirs))]}))
		} else {
			i := r.IntN(len(flows))
			f := flows[i]
			if err := f.Destroy(); err != nil {
				t.Fatal(err)
			}
			flows = slices.Delete(flows, i, i+1)
			if mask := f.attr.Match.Mask; !hasMask(mask) {
				masks = slices.DeleteFunc(masks, func(m MatchKey) bool { return m == mask })
			}
			if f.Destroy() == nil {
				t.Fatal("a rule ended twice")
			}
		}
		most = max(most, len(flows))
		now := w.nic.steering.now.Load()
		key, other := random().Value, random().Value
		for i := range key {
			key[i] |= other[i]
		}
		var got []*TIR
		for i := range now.before {
			if e := now.before[i].firstMatch(&key); e != nil {
				got = e.tirs
				break
			}
		}
		if want := first(&key); !slices.Equal(got, want) {
			t.Fatalf("step %d: %d rules, %x is for %v, want %v", step, len(flows), key, got, want)
		}
		if got != nil {
			found++
		}
		mac := fieldDstMAC.getField(&key)
		required := slices.ContainsFunc(flows, func(f *Flow) bool {
			dst, ok := f.attr.Match.exactDst()
			return ok && dst == mac
		})
		if now.requiresMAC(mac) != required {
			t.Fatalf("step %d: destination %x stays inside: %v, want %v", step, mac, !required,
				required)
		}
		if n := w.nic.Objects().Flows; n != len(flows) {
			t.Fatalf("step %d: %d rules, want %d", step, n, len(flows))
		}
	}
	if found < 1000 || most < 400 {
		t.Errorf("%d frames of 6000 found an entry, among %d rules at most", found, most)
	}
	for _, f := range flows {
		if err := f.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	if now := w.nic.steering.now.Load(); len(now.before) != 0 || now.macs.root != nil {
		t.Errorf("without rules there are tables: %+v", now)
	}
}

// TestManyRules: a rule beside 20,000 costs not much more to make and to end than one beside 100,
// and a frame does not look at all of them: all is in proportion to the logarithm. What is counted
// is the nodes of trees that are copied, each an allocation, and those on the way of a frame.
func TestManyRules(t *testing.T) {
	changes := map[int]float64{}
	for _, n := range []int{100, 20_000} {
		w := newWorld(t, Config{})
		tir := w.sink(1).tir
		match := func(i int) Match { return tcpMatch([4]byte{10, 0, 0, 1}, uint16(i), 0xffff) }
		for i := range n {
			w.flow(FlowAttr{Match: match(2 * i), TIR: tir})
		}
		group := &w.nic.steering.now.Load().before[0].groups[0]
		for i := range n {
			m := match(2 * i)
			visits := 0
			for node := group.root; ; visits++ {
				c := m.Value.compareMasked(&group.mask, &node.entry.match.Value)
				if c == 0 {
					break
				} else if c < 0 {
					node = node.left
				} else {
					node = node.right
				}
			}
			if visits > 50 || group.find(&m.Value).match != m {
				t.Fatalf("rule %d of %d is found after %d others", i, n, visits)
			}
		}
		at := 0
		changes[n] = testing.AllocsPerRun(1000, func() {
			at = (at + 7919) % n
			if err := w.flow(FlowAttr{Match: match(2*at + 1), TIR: tir}).Destroy(); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Logf("allocations to make and end a rule, by the number of others: %v", changes)
	if changes[20_000] > 4*changes[100] {
		t.Errorf("a rule beside 20,000 makes %v allocations, beside 100 %v", changes[20_000],
			changes[100])
	}
}
