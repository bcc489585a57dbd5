package simnic

import (
	"strings"
	"testing"
)

// Each card has a name, ids and firmware of its own, and New returns a NIC with them; a VF of newer
// ones shares its id, as in linux drivers/net/ethernet/mellanox/mlx5/core/main.c.
func TestCards(t *testing.T) {
	seen := map[any]string{}
	for _, c := range Cards() {
		for _, id := range []any{c.Name, c.Title, c.DeviceID, c.Firmware} {
			if other := seen[id]; other != "" {
				t.Errorf("%s and %s have %v both", c.Name, other, id)
			}
			seen[id] = c.Name
		}
		n := newNIC(t, Config{Card: c.Name})
		if n.Card() != c || n.Caps() != c.Caps || n.DeviceID() != c.DeviceID {
			t.Errorf("%s: the NIC is %+v", c.Name, n.Card())
		}
		vf := newNIC(t, Config{Card: c.Name, Function: Function{Kind: VF}})
		if vf.DeviceID() != c.VirtualID || c.VirtualID == c.DeviceID {
			t.Errorf("%s: a virtual function has the id %#x", c.Name, vf.DeviceID())
		}
	}
	if n := newNIC(t, Config{}); n.Card().Name != "cx6dx" || n.Caps() != DefaultCaps() {
		t.Errorf("no card named: %s", n.Card().Name)
	}
	want := `no card "cx3": choose one of cx4lx, cx5, cx6dx, cx6lx, cx7, bf2, bf3, cx8, cx9`
	if _, err := New(Config{Card: "cx3"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("cx3: %v, want %s", err, want)
	}
	if v := Cards()[1].FirmwareVersion(); v != "16.35.4554" {
		t.Errorf("firmware %s", v)
	}
}
