package pcie

import (
	"maps"
	"testing"
)

// Resources counts each kind of object while it exists.
func TestResources(t *testing.T) {
	d := newDriver(t)
	check := func(what string, want map[string]int) {
		t.Helper()
		if got := d.fn.Resources(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("with an event queue", map[string]int{"eqs": 1})
	cqn := d.cq(4)
	table, group := d.table(tableNICReceive)
	pd := number.u32(d.do("ALLOC_PD", input(0x800, 0, 16), 16))
	give := input(0x108, pagesGive, 24)
	give[15] = 1
	d.do("MANAGE_PAGES", give, 16)
	d.do("a drop rule", entry(tableNICReceive, table, group, 0, [6]byte{2}, actionDrop, nil, nil),
		16)
	check("with one of each", map[string]int{"eqs": 1, "cqs": 1, "tables": 1, "roots": 1,
		"groups": 1, "entries": 1, "protection domains": 1, "pages": 1})
	d.do("DESTROY_CQ", about(0x401, cqn, 16), 16)
	d.do("DEALLOC_PD", about(0x801, pd, 16), 16)
	d.do("DESTROY_EQ", about(0x302, d.eqn, 16), 16)
	d.do("TEARDOWN_HCA", input(0x103, 0, 16), 16)
	left := map[string]int{"tables": 1, "roots": 1, "groups": 1, "entries": 1}
	if got := d.fn.Abandoned(); !maps.Equal(got, left) {
		t.Errorf("abandoned at the teardown: %v, want %v", got, left)
	}
	check("after the teardown", map[string]int{"pages": 1})
	take := input(0x108, pagesTake, 16)
	take[15] = 1
	d.do("MANAGE_PAGES", take, 24)
	check("at the end", map[string]int{})
	if n := d.nic.Objects().Numbers; n != 0 {
		t.Errorf("%d objects of the NIC", n)
	}
}
