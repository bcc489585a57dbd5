package dv_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// tagFrame puts a tag into a frame.
func tagFrame(f []byte, tci uint16) []byte {
	return slices.Insert(bytes.Clone(f), 12, 0x81, 0x00, byte(tci>>8), byte(tci))
}

// In a VLAN we get its frames, of every priority and class, and Linux keeps all others, those for
// our MAC too.
func TestVLANSteering(t *testing.T) {
	noStrip := simnic.DefaultCaps()
	noStrip.VLANStrip = false
	for name, caps := range map[string]simnic.Caps{"stripped": simnic.DefaultCaps(),
		"not stripped": noStrip} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, simnic.Config{Caps: caps}, kernel.Config{})
			d := s.open(t, dv.Config{NIC: dv.NIC{VLAN: 100}})
			for _, c := range []struct {
				name        string
				frame       []byte
				ours, linux bool
			}{
				{"ours", tagFrame(frame(ourMAC, peerMAC, 0x88b5, 100), 100), true, false},
				{"ours, urgent", tagFrame(frame(ourMAC, peerMAC, 0x88b5, 100), 7<<13|100), true,
					false},
				{"ours, IPv4", tagFrame(frame(ourMAC, peerMAC, 0x0800, 100), 100), true, false},
				{"broadcast", tagFrame(frame(broadcast, peerMAC, 0x0806, 60), 100), true, true},
				{"no tag", frame(ourMAC, peerMAC, 0x88b5, 100), false, false},
				{"another network", tagFrame(frame(ourMAC, peerMAC, 0x88b5, 100), 101), false,
					false},
				{"broadcast without tag", frame(broadcast, peerMAC, 0x0806, 60), false, true},
				{"broadcast in another network", tagFrame(frame(broadcast, peerMAC, 0x0806, 60), 4),
					false, true},
			} {
				s.wire.send(t, c.frame)
				got := poll(d.Rx(0))
				if (len(got) == 1) != c.ours || (len(s.netdev.drain()) == 1) != c.linux {
					t.Errorf("%s: %d frames came", c.name, len(got))
				}
				if stripped := caps.VLANStrip; c.ours && len(got) == 1 &&
					(got[0].Flags&dv.RxVLAN != 0) != stripped {
					t.Errorf("%s: flags %v", c.name, got[0].Flags)
				}
			}
		})
	}
}
