package simnic

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// A legacy multi-packet WQE sends a packet per segment, all of the size in the MSS field; queues
// and devices without the capability refuse it.
func TestLegacyMPW(t *testing.T) {
	other := append(append([]byte(nil), frame60[:59]...), 0xee)
	for _, tt := range []struct {
		name           string
		size           uint16
		segments       int
		queue, device  bool
		frames, opcode int
	}{
		{"two", 60, 2, true, true, 2, 0},
		{"five", 60, 5, true, true, 5, 0},
		{"seven", 60, 7, true, true, 0, 0xd},
		{"another size", 61, 2, true, true, 0, 0xd},
		{"not for this queue", 60, 2, false, true, 0, 0xd},
		{"not for this device", 60, 2, true, false, 0, 0xd},
	} {
		t.Run(tt.name, func(t *testing.T) {
			caps := DefaultCaps()
			caps.LegacyMPW = tt.device
			r := newSendRig(t, Config{Caps: caps}, 0)
			sq := newSQ(t, r.nic, r.cq, 4, func(a *SQAttr) { a.LegacyMPW = tt.queue })
			copy(r.buf, frame60)
			copy(r.buf[64:], other)
			w := concat(ctrl(0x0e, 2+tt.segments), ethSeg(0, tt.size, 0))
			w[0] = mlx5.OpModLegacyMPW
			for i := range tt.segments {
				w = append(w, seg(60, r.key.Key(), r.addr+64*uint64(min(i, 1)))...)
			}
			sq.post(append(w, make([]byte, (64-len(w)%64)%64)...))
			sq.doorbell()
			if e := r.cq.mustPoll(t); int(e[63]>>4) != tt.opcode {
				t.Fatalf("completion %x", e)
			}
			got := r.wire.drain()
			if tt.opcode != 0 {
				return // packets ahead of the mistake may have left
			}
			if len(got) != tt.frames || !bytes.Equal(got[0].Data, frame60) ||
				!bytes.Equal(got[1].Data, other) {
				t.Errorf("%d frames, want %d", len(got), tt.frames)
			}
		})
	}
}
