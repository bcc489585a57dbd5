package simnic

import (
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// TestSwitching checks which receivers get the frames that an owner of the port sends.
func TestSwitching(t *testing.T) {
	type seen struct{ wire, netdev, same, other int }
	for _, self := range []bool{false, true} {
		for _, tc := range []struct {
			name   string
			netdev bool // sent by the netdev, else by a user of domain 1
			dst    [6]byte
			want   seen
		}{
			{"user to the world", false, macThird, seen{wire: 1}},
			{"user broadcast", false, macBcast, seen{wire: 1, netdev: 1, other: 1}},
			{"user multicast", false, macMcast, seen{wire: 1, netdev: 1, other: 1}},
			{"user to the netdev", false, macNetdev, seen{netdev: 1}},
			{"user to another user", false, [6]byte{2, 0, 0, 0, 0, 4}, seen{other: 1}},
			{"user to itself", false, macTwo, seen{}},
			{"netdev to the world", true, macThird, seen{wire: 1}},
			{"netdev broadcast", true, macBcast, seen{wire: 1, same: 1, other: 1}},
			{"netdev to a user", true, macTwo, seen{same: 1}},
			{"netdev to itself", true, macNetdev, seen{}},
		} {
			t.Run(fmt.Sprintf("%s, self loopback %v", tc.name, self), func(t *testing.T) {
				w := newWorld(t, Config{SelfLoopback: self})
				same, other := w.sink(1), w.sink(2)
				w.flow(FlowAttr{Match: dstMatch(macTwo, macExact), TIR: same.tir})
				w.flow(FlowAttr{Match: dstMatch([6]byte{2, 0, 0, 0, 0, 4}, macExact),
					TIR: other.tir})
				for _, s := range []*sink{same, other} {
					w.flow(FlowAttr{Match: dstMatch(macGroup, macGroup),
						TIR: s.tir, DontTrap: true})
				}
				f := to(tc.dst, macTwo)
				if tc.netdev {
					w.netdev.recv([]frame.Frame{{Data: f}})
				} else {
					cq := newCQ(t, w.nic, 4, nil)
					sq := newSQ(t, w.nic, cq, 4, nil)
					m := mem(t, 4096)
					copy(m.Bytes(), f)
					sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0),
						seg(60, newKey(t, w.nic, m, nil).Key(), m.Addr())))
					sq.doorbell()
				}
				want := tc.want
				if self && !tc.netdev &&
					(tc.dst == macBcast || tc.dst == macMcast || tc.dst == macTwo) {
					want.same = 1
				}
				var got seen
				got.wire, got.netdev = len(w.wire.drain()), len(w.netdev.drain())
				got.same, _ = same.got()
				got.other, _ = other.got()
				if got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				clean(t, w.nic)
			})
		}
	}
}

func TestSelfLoopbackOfTIR(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.sink(1)
	a := s.tir.Attr()
	a.SelfLoopbackMulticast = true
	if err := s.tir.Modify(a); err != nil {
		t.Fatal(err)
	}
	o := frameOrigin{owner: ownerSlice, domain: true, td: 1}
	if w.nic.blocksLoopback(o, &a, multicast) || w.nic.blocksLoopback(o, &a, broadcast) ||
		!w.nic.blocksLoopback(o, &a, unicast) {
		t.Error("multicast loopback allowed by the TIR")
	}
}

// TestLoopbackOff keeps frames of the port's own queues from the port's own receivers.
func TestLoopbackOff(t *testing.T) {
	for _, tc := range []struct {
		name                string
		unicast, multicast  bool
		dst                 [6]byte
		wire, netdev, other int
	}{
		{"unicast, all on", true, true, macNetdev, 0, 1, 0},
		{"unicast off", false, true, macNetdev, 1, 0, 0},
		{"unicast to a user, off", false, true, macTwo, 1, 0, 0},
		{"broadcast, unicast off", false, true, macBcast, 1, 1, 1},
		{"multicast off", true, false, macBcast, 1, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.nic.SetLoopback(tc.unicast, tc.multicast)
			other := w.sink(2)
			w.flow(FlowAttr{Match: dstMatch(macTwo, macExact), TIR: other.tir})
			w.flow(FlowAttr{Match: dstMatch(macGroup, macGroup), TIR: other.tir, DontTrap: true})
			w.nic.forwardFrames(frameOrigin{owner: ownerSlice, domain: true, td: 1},
				[]frame.Frame{{Data: to(tc.dst, macThird)}}, false)
			n, _ := other.got()
			if wire, netdev := len(w.wire.drain()), len(w.netdev.drain()); wire != tc.wire ||
				netdev != tc.netdev || n != tc.other {
				t.Errorf("%d to the wire, %d to the netdev, %d to the other user", wire, netdev, n)
			}
			clean(t, w.nic)
		})
	}
}

// TestLocalMACs checks that frames to the local addresses of a classifier stay inside the NIC.
func TestLocalMACs(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.sink(2)
	w.nic.SetClassifier(func(_ *MatchKey, out []Destination) []Destination {
		return append(out,
			Destination{TIR: s.tir})
	})
	o := frameOrigin{owner: ownerSlice, domain: true, td: 1}
	for i, want := range []struct{ wire, inside int }{{1, 0}, {0, 1}} {
		w.nic.forwardFrames(o, []frame.Frame{{Data: to(macTwo, macThird)}}, false)
		n, _ := s.got()
		if wire := len(w.wire.drain()); wire != want.wire || n != want.inside {
			t.Errorf("%d: %d to the wire, %d inside, want %+v", i, wire, n, want)
		}
		w.nic.SetLocalMACs([][6]byte{macThird, macTwo})
	}
}
