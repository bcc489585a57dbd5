package dv_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Frames for one MAC go to one device: another claim is refused in one sentence,
// and the first gets every frame once, before, meanwhile and after.
func TestSecondClaimOfMAC(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  dv.Config
		want string
	}{
		{"MAC", dv.Config{}, "another program has MAC 02:00:00:00:00:02 on this port"},
		{"MAC in a VLAN", dv.Config{NIC: dv.NIC{VLAN: 7}},
			"another program has MAC 02:00:00:00:00:02 in VLAN 7 on this port"},
		{"promiscuous", dv.Config{NIC: dv.NIC{Steering: dv.Steering{Promiscuous: true}}},
			"another program has all unicast on this port"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.RxQueues = 2
			s, d := usual(t, tc.cfg)
			for i, weights := range [][]int{nil, {1, 0}, {1, 1}} {
				if weights != nil {
					if err := d.Rebalance(weights); err != nil {
						t.Fatal(err)
					}
				}
				refuseSecond(t, s, tc.cfg, tc.want)
				checkFlows(t, s, d, i)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			checkFlows(t, s, s.open(t, tc.cfg), 9) // the claim ended with its device
		})
	}
}

// refuseSecond opens the NIC once more, which must fail in a sentence that begins with want,
// with the first rule that it asks for: no frame of the first is led astray meanwhile.
func refuseSecond(t *testing.T, s *sim, cfg dv.Config, want string) {
	t.Helper()
	k := &spy{}
	cfg.Model.Kernel = func() (_ uverbs.Kernel, err error) {
		k.Kernel, err = s.linux.OpenNode()
		return k, err
	}
	d, err := dv.Open(t.Context(), s.config(cfg))
	if n := len(slices.DeleteFunc(k.commands,
		func(c uint32) bool { return c != uverbs.ExCmdCreateFlow })); n != 1 {
		t.Errorf("second claim: %d rules were asked for, want 1", n)
	}
	if err == nil {
		d.Close()
		t.Fatal("a second device got the frames too")
	}
	if !errors.Is(err, dv.ErrMAC) || !errors.Is(err, unix.EEXIST) ||
		!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("second claim: %v", err)
	}
}

// checkFlows sends frames of every class to d, which must get each once.
func checkFlows(t *testing.T, s *sim, d *dv.Device, i int) {
	t.Helper()
	for class, f := range flows(i) {
		b := packet(f.Src, f.Dst, f.Proto, 40)
		if d.VLAN() != 0 {
			b = tagFrame(b, d.VLAN())
		}
		s.wire.send(t, b)
		if n := len(poll(d.Rx(0))) + len(poll(d.Rx(1))); n != 1 {
			t.Errorf("%s: %d frames for 1", class, n)
		}
	}
}

// Slices with MACs of their own share broadcast: their rules for it are equal, and untagged.
func TestSlicesShareBroadcast(t *testing.T) {
	s, first := usual(t, dv.Config{})
	second := s.open(t, dv.Config{NIC: dv.NIC{MAC: otherMAC}})
	s.wire.send(t, frame(broadcast, peerMAC, 0x0806, 60))
	for i, d := range []*dv.Device{first, second} {
		if n := len(poll(d.Rx(0))); n != 1 {
			t.Errorf("device %d: %d frames for 1", i, n)
		}
	}
	if n := len(s.netdev.drain()); n != 1 {
		t.Errorf("netdev: %d frames for 1", n)
	}
}
