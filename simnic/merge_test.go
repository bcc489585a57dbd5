package simnic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// tcpSegment is n bytes of payload at offset at of the published RSS flow, with
// a time stamp option: 66 header bytes.
func tcpSegment(at, n int, flags byte) []byte {
	f := append(append([]byte(nil), tcpFrame72[:12]...), tcpFrame72[16:16+2+20+20]...)
	f = append(f, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2)
	for i := range n {
		f = append(f, byte((at+i)*11))
	}
	binary.BigEndian.PutUint16(f[16:], uint16(52+n))
	f[22] = 63
	tcp := f[34:]
	binary.BigEndian.PutUint32(tcp[4:], uint32(1+at))
	binary.BigEndian.PutUint32(tcp[8:], 0x20000100)
	tcp[12], tcp[13] = 8<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 0x0200)
	fixChecksums(f)
	return f
}

func lroRig(t *testing.T, now *uint64, rq func(*RQAttr), logStride int) *recvRig {
	a := hashTIR(false, false)
	a.LRO = LROAttr{IPv4: true, MaxPayload: 32768}
	return newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(now)}, tir: a,
		rq: rq, logStride: logStride})
}

func TestGoldenLRO(t *testing.T) {
	now := uint64(0)
	r := lroRig(t, &now, func(a *RQAttr) { a.StartIndex = 0x105 }, 5)
	r.rq.post(append(seg(1000, r.key.Key(), r.addr), seg(60000, r.key.Key(), r.addr+4096)...))
	first := tcpSegment(0, 1448, 0x10)
	r.give(first, tcpSegment(1448, 1448, 0x10), tcpSegment(2896, 1448, 0x18))
	e := r.cq.mustPoll(t)
	sum := be16(e[0x14:])
	binary.BigEndian.PutUint16(e[0x14:], 0) // the vector leaves the checksum out
	expect(t, "completion", e, dump(`
0000: 00000000 403f0200 20000100 51ccc178
0010: 55000000 00000000 00000000 07480000
0020: 03000009 00000000 00000000 0000113a
0030: 00000000 00000000 00000000 01050020`))
	data := append(append([]byte(nil), r.buf[:1000]...), r.buf[4096:4096+4410-1000]...)
	expect(t, "headers are the first segment's", data[:66], first[:66])
	var payload []byte
	for i := range 4344 {
		payload = append(payload, byte(i*11))
	}
	if !bytes.Equal(data[66:], payload) {
		t.Error("payload differs")
	}
	if want := frame.Sum(payload); sum != want {
		t.Errorf("checksum %#x, payload sums to %#x", sum, want)
	}
	c := r.nic.Counters()
	if c.Slice.RxPackets != 3 || c.LROPackets != 2 {
		t.Errorf("counters %+v", c)
	}
}

func TestLROBreaks(t *testing.T) {
	odd := func(f []byte, change func([]byte)) []byte { change(f); fixChecksums(f); return f }
	bad := tcpSegment(1448, 1448, 0x10)
	bad[100] ^= 1
	tests := []struct {
		name  string
		batch [][]byte
		want  []int // segments of each completion
	}{
		{"in order", [][]byte{tcpSegment(0, 1448, 0x10), tcpSegment(1448, 1448, 0x10)}, []int{2}},
		{"odd lengths", [][]byte{tcpSegment(0, 1447, 0x10), tcpSegment(1447, 1401, 0x10),
			tcpSegment(2848, 7, 0x10)}, []int{3}},
		{"gap", [][]byte{tcpSegment(0, 1448, 0x10), tcpSegment(2896, 1448, 0x10)}, []int{1, 1}},
		{"PSH ends it", [][]byte{tcpSegment(0, 1448, 0x18), tcpSegment(1448, 1448, 0x10)},
			[]int{1, 1}},
		{"FIN goes alone", [][]byte{tcpSegment(0, 1448, 0x10), tcpSegment(1448, 1448, 0x11)},
			[]int{1, 1}},
		{"pure ACK goes alone", [][]byte{tcpSegment(0, 1448, 0x10), tcpSegment(1448, 0, 0x10)},
			[]int{1, 1}},
		{"small first segment", [][]byte{tcpSegment(0, 100, 0x10), tcpSegment(100, 1448, 0x10),
			tcpSegment(1548, 10, 0x10)}, []int{1, 2}},
		{"bad checksum", [][]byte{tcpSegment(0, 1448, 0x10), bad}, []int{1, 1}},
		{"other flow", [][]byte{tcpSegment(0, 1448, 0x10),
			odd(tcpSegment(1448, 1448, 0x10), func(f []byte) { f[35]++ })}, []int{1, 1}},
		{"other TOS", [][]byte{tcpSegment(0, 1448, 0x10),
			odd(tcpSegment(1448, 1448, 0x10), func(f []byte) { f[15] = 3 })}, []int{1, 1}},
		{"other option", [][]byte{tcpSegment(0, 1448, 0x10),
			odd(tcpSegment(1448, 1448, 0x10), func(f []byte) { f[54] = 5 })}, []int{1, 1}},
		{"UDP between", [][]byte{tcpSegment(0, 1448, 0x10), frame60, tcpSegment(1448, 1448, 0x10)},
			[]int{1, 0, 1}},
		{"capacity", [][]byte{tcpSegment(0, 1448, 0x10), tcpSegment(1448, 1448, 0x10),
			tcpSegment(2896, 1448, 0x10), tcpSegment(4344, 1448, 0x10)}, []int{2, 2}},
	}
	for _, tc := range tests {
		for _, kind := range []string{"cyclic", "striding"} {
			t.Run(tc.name+" "+kind, func(t *testing.T) {
				now := uint64(0)
				var r *recvRig
				if kind == "cyclic" {
					r = lroRig(t, &now, nil, 4)
					for i := range 8 {
						r.rq.post(seg(4096, r.key.Key(), r.addr+uint64(i)*8192))
					}
				} else {
					r = lroRig(t, &now,
						func(a *RQAttr) {
							a.Striding = &Striding{LogStrideBytes: 9,
								LogStrides: 3}
						}, 5)
					for i := range 8 {
						r.rq.post(append(make([]byte, 16),
							seg(4096, r.key.Key(), r.addr+uint64(i)*8192)...))
					}
				}
				r.give(tc.batch...)
				var got []int
				for e := r.cq.poll(); e != nil; e = r.cq.poll() {
					switch {
					case e[0x2c]&0x80 != 0: // filler
					case e[0x1d]&0x70 == 0x20:
						got = append(got, 0)
					default:
						got = append(got, max(1, int(e[0x20])))
					}
				}
				if len(got) != len(tc.want) {
					t.Fatalf("segments %v, want %v", got, tc.want)
				}
				for i := range got {
					if got[i] != tc.want[i] {
						t.Fatalf("segments %v, want %v", got, tc.want)
					}
				}
				clean(t, r.nic)
			})
		}
	}
}
