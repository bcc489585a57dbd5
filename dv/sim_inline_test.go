package dv_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// What a device demands in the descriptor is there: for every kind of frame, with
// the longest options, copied or posted in place, tagged, or cut by the NIC, which fails a
// descriptor that has less.
func TestMinimumInline(t *testing.T) {
	for _, c := range []struct {
		mode simnic.InlineMode
		want int
	}{
		{simnic.InlineNone, 0}, {simnic.InlineL2, 18},
		{simnic.InlineIP, 78}, {simnic.InlineL4, 138},
	} {
		t.Run(fmt.Sprint(c.want), func(t *testing.T) {
			caps := simnic.DefaultCaps()
			caps.MinInline = c.mode
			s := newSim(t, simnic.Config{Caps: caps}, kernel.Config{})
			d := s.open(t, dv.Config{Tuning: dv.Tuning{TxInline: 60}})
			if got := d.Caps().MinInline; got != c.want {
				t.Fatalf("%d bytes inline, want %d", got, c.want)
			}
			sent := 0
			for class, f := range flows(3) {
				for _, payload := range []int{0, 1, 18, 60, 61, 200, 1350} {
					for _, options := range []int{0, 12, 40} {
						b := packet(f.Src, f.Dst, f.Proto, payload)
						copy(b, peerMAC)
						if f.Proto == 6 {
							b = withTCPOptions(b, options, f.Src.Addr().Is4())
						}
						s.sendEveryWay(t, d, class, b)
						sent += 3
					}
				}
			}
			s.sendEveryWay(t, d, "no IP", frame(peerMAC, ourMAC, 0x88b5, 1000))
			if st := d.Stats().Tx[0]; st.Packets != uint64(sent+3) || st.Resets != 0 ||
				(st.MultiPacket > 0) != (c.want == 0) {
				t.Errorf("stats %+v", st)
			}
			if n := s.nic.Counters().TxInlineDropped; n != 0 {
				t.Errorf("%d descriptors with too little inlined", n)
			}
		})
	}
}

// withTCPOptions puts n bytes of options into a TCP frame.
func withTCPOptions(b []byte, n int, v4 bool) []byte {
	tcp := 54
	if v4 {
		tcp = 34
		binary.BigEndian.PutUint16(b[16:], uint16(len(b)+n-14))
	} else {
		binary.BigEndian.PutUint16(b[18:], uint16(len(b)+n-54))
	}
	b[tcp+12] = byte(20+n) / 4 << 4
	return append(append(bytes.Clone(b[:tcp+20]), bytes.Repeat([]byte{1}, n)...), b[tcp+20:]...)
}

// sendEveryWay sends b copied, tagged and in place, and compares what leaves.
func (s *sim) sendEveryWay(t *testing.T, d *dv.Device, what string, b []byte) {
	t.Helper()
	q := d.Tx(0)
	if err := q.Post(&dv.TxPacket{Bufs: [][]byte{b}}); err != nil {
		t.Fatal(err)
	}
	if err := q.Post(&dv.TxPacket{Bufs: [][]byte{b[:14], b[14:]}, Flags: dv.TxVLAN,
		VLAN: 0xa123}); err != nil {
		t.Fatal(err)
	}
	f, ok := d.Pool().Get()
	if !ok {
		t.Fatal("no frame")
	}
	copy(d.Pool().Bytes(f)[32:], b)
	if err := q.PostFrame(f, 32, len(b), 0); err != nil {
		t.Fatal(err)
	}
	q.Flush()
	q.Reclaim()
	want := b
	if len(want) < 60 {
		want = append(bytes.Clone(want), make([]byte, 60-len(want))...)
	}
	got := s.wire.drain()
	if len(got) != 3 || !bytes.Equal(got[0], want) || !bytes.Equal(got[2], want) ||
		!bytes.Equal(got[1][:18+len(b)-14],
			append(append(bytes.Clone(b[:12]), 0x81, 0, 0xa1, 0x23), b[12:]...)) {
		t.Fatalf("%s of %d bytes: %d frames, %x", what, len(b), len(got), got)
	}
}
