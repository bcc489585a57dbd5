package simnic

import (
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

func TestChecksumOffload(t *testing.T) {
	v6 := dump(`02000000 00020200 00000001 86dd 6000000000101140 fd000000000000000000000000000001 fd000000000000000000000000000002
		03e807d0 00100000 0001020304050607`)
	tests := []struct {
		name  string
		frame []byte
		flags byte
		same  bool // not touched
	}{
		{"IPv4 UDP", flowFrame(3, 100), 0xc0, false},
		{"IPv4 UDP, odd length", flowFrame(3, 101), 0xc0, false},
		{"IPv4 TCP", tcpSegment(7, 555, 0x10), 0xc0, false},
		{"L4 only", flowFrame(3, 77), 0x80, false},
		{"L3 only", flowFrame(3, 77), 0x40, false},
		{"two tags", concat(flowFrame(1, 70)[:12], []byte{0x88, 0xa8, 0, 1, 0x81, 0, 0, 2},
			flowFrame(1, 70)[12:]), 0xc0, false},
		{"trailer behind the datagram", append(flowFrame(1, 70), 1, 2, 3, 4, 5), 0xc0, false},
		{"IPv6 UDP", v6, 0xc0, false},
		{"ARP", append(append([]byte(nil), frame60[:12]...),
			append([]byte{8, 6}, make([]byte, 46)...)...), 0xc0, true},
		{"truncated", frame60[:40], 0x80, true},
		{"no flags", flowFrame(3, 100), 0, true},
	}
	for _, tc := range tests {
		for _, can := range []frame.Offload{0, frame.OffloadCsum} {
			t.Run(fmt.Sprintf("%s, offload %d", tc.name, can), func(t *testing.T) {
				r := newSendRig(t, Config{}, 0)
				r.wire.can = can
				in := append([]byte(nil), tc.frame...)
				p := frame.Parse(in)
				if !tc.same { // poison what the device is to compute
					if tc.flags&0x40 != 0 && p.L3 == 2 {
						in[p.L3At+10] ^= 0x5a
					}
					if tc.flags&0x80 != 0 {
						in[p.ChecksumAt()] ^= 0xa5
					}
				}
				copy(r.buf, in)
				r.sq.post(concat(ctrl(0x0a, 3), ethSeg(tc.flags, 0, 0),
					seg(len(in), r.key.Key(), r.addr)))
				r.sq.doorbell()
				got := r.wire.drain()
				if len(got) != 1 {
					t.Fatalf("%d frames: %x", len(got), r.cq.poll())
				}
				got[0].CompleteChecksum()
				if len(in) < 60 {
					got[0].Data = got[0].Data[:len(in)]
				}
				if p.L3 == 1 { // no reference checksum in the vector: it must verify
					l4 := got[0].Data[p.L4At:]
					if frame.AddSums(frame.Sum(l4), p.PseudoSum(got[0].Data, len(l4))) != 0xffff {
						t.Errorf("checksum does not verify: % x", got[0].Data)
					}
					return
				}
				expect(t, "frame", got[0].Data, tc.frame)
			})
		}
	}
}

func TestPadding(t *testing.T) {
	for _, n := range []int{19, 42, 59, 60, 61} {
		r := newSendRig(t, Config{}, 0)
		for i := range r.buf {
			r.buf[i] = byte(i) | 1
		}
		r.buf[0] = 2
		r.sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), seg(n, r.key.Key(), r.addr)))
		r.sq.doorbell()
		want := append(append([]byte(nil), r.buf[:n]...), make([]byte, max(0, 60-n))...)
		expect(t, "frame", r.wire.drain()[0].Data, want)
	}
}
