package simnic

import (
	"bytes"
	"strings"
	"testing"
)

// copyLast is a BlueFlame copy of the last n blocks posted, into one half.
func (r *sendRig) copyLast(half, n int, change func(b []byte)) {
	at := int(r.sq.pc-uint16(n)) & (1<<r.sq.log - 1) * 64
	b := append([]byte(nil), r.sq.ring.Bytes()[at:at+64*n]...)
	if change != nil {
		change(b)
	}
	r.sq.rec.StoreBE32(4, uint32(r.sq.pc))
	r.nic.UARCopy(0, 0x800+0x100*half, b, true)
}

func TestBlueFlame(t *testing.T) {
	// all inline, two blocks
	two := concat(ctrl(0x0a, 6), ethSeg(0, 0, 60)[:14], frame60, make([]byte, 6))
	tests := []struct {
		name string
		ring func(r *sendRig)
		sent int
		want string // the violation
	}{
		{"right", func(r *sendRig) { r.sq.post(two); r.copyLast(0, 2, nil) }, 1, ""},
		{"in turn", func(r *sendRig) {
			for i := range 6 {
				r.sq.post(two)
				r.copyLast(i%2, 2, nil)
			}
		}, 6, ""},
		{"register 1", func(r *sendRig) {
			r.sq.post(two)
			r.sq.rec.StoreBE32(4, 2)
			r.nic.UARCopy(0, 0xb00, r.sq.ring.Bytes()[:128], true)
		}, 1, ""},
		{"a doorbell between", func(r *sendRig) {
			r.sq.post(two)
			r.copyLast(1, 2, nil)
			r.sq.post(two)
			r.sq.doorbell()
		}, 2, ""},
		{"behind lost ones", func(r *sendRig) {
			lost := r.nic.Inject(QueueFault{Kind: FaultLoseDoorbell, Skip: 1})
			for i := range 4 {
				if i == 3 {
					lost.Remove()
				}
				r.sq.post(two)
				r.copyLast(i%2, 2, nil)
			}
		}, 4, ""},
		{"behind a lost one, the same half twice", func(r *sendRig) {
			lost := r.nic.Inject(QueueFault{Kind: FaultLoseDoorbell})
			r.sq.post(two)
			r.copyLast(1, 2, nil)
			lost.Remove()
			r.sq.post(two)
			r.copyLast(1, 2, nil)
		}, 2, "same half"},
		{"the same half twice", func(r *sendRig) {
			for range 2 {
				r.sq.post(two)
				r.copyLast(1, 2, nil)
			}
		}, 2, "same half"},
		{"differs from the ring", func(r *sendRig) {
			r.sq.post(two)
			r.copyLast(0, 2,
				func(b []byte) { b[90]++ })
		}, 1, "differs"},
		{"cut short", func(r *sendRig) {
			r.sq.post(two)
			r.sq.rec.StoreBE32(4, 2)
			r.nic.UARCopy(0, 0x800, r.sq.ring.Bytes()[:64], true)
		}, 1, "64 of 96 bytes"},
		{"one of several", func(r *sendRig) {
			r.sq.post(two)
			r.sq.post(two)
			r.copyLast(0, 2,
				nil)
		}, 2, "not rung for"},
		{"over the end of the ring", func(r *sendRig) {
			r.sq.pc, r.sq.hwCI = 31, 31
			r.sq.post(two)
			r.sq.rec.StoreBE32(4, 33)
			b := append(append([]byte(nil), r.sq.ring.Bytes()[31*64:32*64]...),
				r.sq.ring.Bytes()[:64]...)
			r.nic.UARCopy(0, 0x800, b, true)
		}, 1, "behind the end"},
		{"uncached page", func(r *sendRig) {
			r.sq.post(two)
			r.sq.rec.StoreBE32(4, 2)
			r.nic.UARCopy(0, 0x800, r.sq.ring.Bytes()[:128], false)
		}, 1, "uncached"},
		{"not the last", func(r *sendRig) {
			r.sq.post(two)
			r.sq.rec.StoreBE32(4, 4)
			r.nic.UARCopy(0, 0x800, r.sq.ring.Bytes()[:128], true)
		}, 1, "does not end at the record's counter"},
		{"too long", func(r *sendRig) { r.nic.UARCopy(0, 0x800, make([]byte, 320), true) }, 0,
			"copy of 320 bytes"},
		{"half a block", func(r *sendRig) { r.nic.UARCopy(0, 0x800, make([]byte, 32), true) }, 0,
			"copy of 32 bytes"},
		{"beside a register", func(r *sendRig) { r.nic.UARCopy(0, 0x840, make([]byte, 64), true) },
			0, "offset 0x840"},
		{"another page", func(r *sendRig) {
			r.sq.post(two)
			r.nic.UARCopy(1, 0x800,
				r.sq.ring.Bytes()[:128], true)
		}, 0, "names no send queue"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newSendRig(t, Config{}, 0)
			tc.ring(r)
			v := strings.Join(r.nic.Violations(), "\n")
			if tc.want == "" && v != "" || !strings.Contains(v, tc.want) {
				t.Errorf("violations %q, want %q", v, tc.want)
			}
			sent := 0
			for _, f := range r.wire.drain() {
				if bytes.Equal(f.Data, frame60) {
					sent++
				}
			}
			if sent != tc.sent {
				t.Errorf("%d frames sent, want %d", sent, tc.sent)
			}
			if c := r.nic.Counters(); (c.BlueFlames > 0) != (tc.sent > 0) {
				t.Errorf("%d copies counted", c.BlueFlames)
			}
		})
	}
}
