package frame

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

func TestVnetHeader(t *testing.T) {
	hdr, _, l4 := simtest.Header(false, false, 0, 100)
	data := append(hdr, make([]byte, 100)...)
	for _, tt := range []struct {
		name  string
		frame Frame
		hdr   []uint16 // as 5 words
		ok    bool
	}{
		{"plain", Frame{}, []uint16{0, 0, 0, 0, 0}, true},
		{"checksum", Frame{NeedsCsum: true, CsumStart: uint16(l4), CsumOffset: 16},
			[]uint16{1, 0, 0, uint16(l4), 16}, true},
		{"tcp with CWR", Frame{NeedsCsum: true, CsumStart: uint16(l4), CsumOffset: 16,
			GSO: GSOTCPv4, HdrLen: uint16(len(hdr)), MSS: 10},
			[]uint16{0x8101, uint16(len(hdr)), 10, uint16(l4), 16}, true},
		{"checksum outside", Frame{}, []uint16{1, 0, 0, uint16(len(data)), 16}, false},
		{"no segment size", Frame{}, []uint16{0x0101, 0, 0, uint16(l4), 16}, false},
		{"segments without checksum", Frame{}, []uint16{0x0100, 0, 10, uint16(l4), 16}, false},
		{"unknown kind", Frame{}, []uint16{0x0301, 0, 10, uint16(l4), 16}, false},
		{"wraps", Frame{}, []uint16{1, 0, 0, 0xfffe, 16}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var wire [VnetHdrLen]byte
			for i, w := range tt.hdr {
				binary.NativeEndian.PutUint16(wire[2*i:], w)
			}
			got, ok := FromVnet(wire[:], data, 0)
			if ok != tt.ok {
				t.Fatalf("taken: %v", ok)
			}
			if !ok {
				return
			}
			tt.frame.Data = data
			if got.NeedsCsum != tt.frame.NeedsCsum || got.CsumStart != tt.frame.CsumStart ||
				got.CsumOffset != tt.frame.CsumOffset ||
				got.GSO != tt.frame.GSO ||
				got.HdrLen != tt.frame.HdrLen || got.MSS != tt.frame.MSS {
				t.Errorf("read as %+v", got)
			}
			var back [VnetHdrLen]byte
			PutVnet(&back, tt.frame)
			if back != wire {
				t.Errorf("written as %x, want %x", back, wire)
			}
		})
	}
}
