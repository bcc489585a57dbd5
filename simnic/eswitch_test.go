package simnic

import (
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// TestSwitchFilter is which frames of the wire an e-switch passes to a function whose lists have
// macTwo and macMcast.
func TestSwitchFilter(t *testing.T) {
	const none, promisc, groups = 0, 1, 2
	lone, pf := Function{}, Function{Kind: SwitchPF}
	vf, trusted := Function{Kind: VF}, Function{Kind: VF, Trusted: true}
	for _, tc := range []struct {
		name string
		fn   Function
		mode int
		// what passes: listed unicast and group, other unicast and group, broadcast
		want string
	}{
		{"PF without SR-IOV", lone, none, "ugUGb"},
		{"PF with SR-IOV", pf, none, "ug--b"},
		{"PF with SR-IOV, promiscuous", pf, promisc, "ugUGb"},
		{"PF with SR-IOV, all groups", pf, groups, "ug-Gb"},
		{"VF", vf, none, "ug--b"},
		{"VF, promiscuous in vain", vf, promisc, "ug--b"},
		{"VF, all groups in vain", vf, groups, "ug--b"},
		{"trusted VF", trusted, none, "ug--b"},
		{"trusted VF, promiscuous", trusted, promisc, "ugUGb"},
		{"trusted VF, all groups", trusted, groups, "ug-Gb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, Config{Function: tc.fn})
			w.nic.SetUnicastList([][6]byte{macTwo})
			w.nic.SetMulticastList([][6]byte{macMcast})
			w.nic.SetReceiveMode(tc.mode == promisc, tc.mode == groups)
			s := w.sink(1)
			w.flow(FlowAttr{Type: FlowAllDefault, TIR: s.tir})
			w.flow(FlowAttr{Match: dstMatch(macGroup, macGroup), TIR: s.tir})
			otherGroup := [6]byte{0x33, 0x33, 0xff, 0, 0, 9}
			got, filtered := "", uint64(0)
			for i, dst := range [][6]byte{macTwo, macMcast, macThird, otherGroup, macBcast} {
				w.wire.recv([]frame.Frame{{Data: to(dst, macThird)}})
				if n, _ := s.got(); n == 1 {
					got += string("ugUGb"[i])
				} else {
					got += "-"
					filtered++
				}
			}
			if c := w.nic.Counters().Drops.SwitchFilter; got != tc.want || c != filtered {
				t.Errorf("passed %s, want %s; %d counted as filtered", got, tc.want, c)
			}
			clean(t, w.nic)
		})
	}
}

// TestSpoofCheck is whether a function may send from another address than its own.
func TestSpoofCheck(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fn      Function
		spoofed uint64 // of one frame from macTwo; those from its own address pass
	}{
		{"VF", Function{Kind: VF}, 0},
		{"VF with spoof check", Function{Kind: VF, SpoofCheck: true}, 1},
		{"trusted VF with spoof check", Function{Kind: VF, Trusted: true, SpoofCheck: true}, 1},
		{"PF", Function{Kind: SwitchPF, SpoofCheck: true}, 0},
	} {
		for _, o := range []owner{ownerSlice, ownerNetdev} {
			t.Run(fmt.Sprintf("%s, owner %d", tc.name, o), func(t *testing.T) {
				w := newWorld(t, Config{Function: tc.fn})
				for _, src := range [][6]byte{macTwo, macNetdev} {
					w.nic.forwardFrames(frameOrigin{owner: o},
						[]frame.Frame{{Data: to(macThird, src)}},
						false)
				}
				sent, drops := len(w.wire.drain()), w.nic.Counters().Drops.Spoofed
				if drops != tc.spoofed || sent != 2-int(tc.spoofed) {
					t.Errorf("%d of 2 sent, %d dropped", sent, drops)
				}
				clean(t, w.nic)
			})
		}
	}
}

// TestNetdevLists checks the count of users of an address: it passes until the last one removes it.
func TestNetdevLists(t *testing.T) {
	nic := newNIC(t, Config{MAC: macNetdev[:], Function: Function{Kind: VF, Trusted: true}})
	passes := func(mac [6]byte) bool {
		return nic.eswitch.passesTo(macBits(mac[:]),
			castOf(macBits(mac[:])))
	}
	if !passes(macNetdev) || passes(macTwo) || passes(macMcast) {
		t.Error("at first not exactly the netdev's own address passes")
	}
	for _, mac := range [][6]byte{macTwo, macMcast} {
		nic.AddAddress(mac)
		nic.AddAddress(mac)
		nic.RemoveAddress(mac)
		if !passes(mac) || !passes(macNetdev) {
			t.Errorf("%x: gone with one of two", mac)
		}
		nic.RemoveAddress(mac)
		if passes(mac) {
			t.Errorf("%x: still there", mac)
		}
	}
	nic.AddAllMulticast()
	if !passes(macMcast) || passes(macTwo) {
		t.Error("all multicast is not exactly that")
	}
	nic.RemoveAllMulticast()
	if err := nic.SetMAC(macTwo[:]); err != nil || !passes(macTwo) ||
		passes(macNetdev) || passes(macMcast) {
		t.Errorf("after a change of the netdev's address: %v", err)
	}
}

// TestUseLoopback is what linux does: frames between the port's own users come when there are
// two contexts, or a queue pair that asks for its own.
func TestUseLoopback(t *testing.T) {
	nic := newNIC(t, Config{})
	for i, step := range []struct {
		contexts, queues int
		want             bool
	}{{0, 0, false}, {1, 0, false}, {1, 0, true}, {1, 0, true}, {-1, 0, true}, {-1, 0, false},
		{0, 1, true}, {0, 1, true}, {0, -1, true}, {0, -1, false}, {-1, 0, false}} {
		nic.UseLoopback(step.contexts, step.queues)
		if u, m := nic.loopback.unicast.Load(), nic.loopback.multicast.Load(); u != step.want ||
			m != step.want {
			t.Errorf("step %d: unicast %v, multicast %v, want %v", i, u, m, step.want)
		}
	}
}
