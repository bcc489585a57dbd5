package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// A driver sees the card that the NIC models: its PCI device id, its firmware version, and the
// inline bytes that a send WQE needs. Fields and values are those of linux
// include/linux/mlx5/mlx5_ifc.h.
func TestCard(t *testing.T) {
	for _, card := range simnic.Cards() {
		t.Run(card.Name, func(t *testing.T) {
			nic, err := simnic.New(simnic.Config{Card: card.Name})
			if err != nil {
				t.Fatal(err)
			}
			defer nic.Close()
			fn := New(nic, Config{})
			defer fn.Close()
			var id [4]byte
			fn.config.read(0, id[:])
			if got := binary.LittleEndian.Uint32(id[:]); got != uint32(card.DeviceID)<<16|0x15b3 {
				t.Errorf("device and vendor %#x", got)
			}
			rev, sub := fn.segmentWord(0), fn.segmentWord(4)
			if fw := card.Firmware; uint16(rev) != fw[0] || uint16(rev>>16) != fw[1] ||
				uint16(sub) != fw[2] {
				t.Errorf("firmware %#x, %#x", rev, sub)
			}
			caps, vport := make([]byte, capSize), make([]byte, 16+264)
			setCaps(caps, fn.ethernetCaps())
			if err := fn.queryVport(make([]byte, 16), vport); err != nil {
				t.Fatal(err)
			}
			// set by the vport context, which says L2, or no inline bytes
			want := map[bool][2]uint64{true: {1, 1}, false: {2, 0}}[card.Name == "cx4lx"]
			mode, least := field{18, 2}, field{5, 3}
			if got := [2]uint64{mode.get(caps), least.get(vport[16:])}; got != want {
				t.Errorf("inline modes of card and vport %v, want %v", got, want)
			}
			legacy, enhanced := field{16, 2}, field{26, 1}
			if !legacy.is(caps) || enhanced.is(caps) == (card.Name == "cx4lx") {
				t.Errorf("multi-packet sends: older kind %v, enhanced %v", legacy.is(caps),
					enhanced.is(caps))
			}
		})
	}
}
