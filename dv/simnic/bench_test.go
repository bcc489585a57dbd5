package simnic

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// BenchmarkFrame is one frame from a send queue over a pair of wires into a
// receive queue, 32 to a doorbell.
func BenchmarkFrame(b *testing.B) {
	for _, size := range []int{64, 1514} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			wa, wb := Pair()
			x, y := newEnd(b, wa, 1, 1), newEnd(b, wb, 2, 1)
			q, p := x.pairs[0], y.pairs[0]
			q.send(p.mac, 64, size)
			p.receive(b)
			wqe := join(ctrl(0x0a, 3), ethSeg(0xc0, 0, 0), seg(size, q.key.Key(), q.addr+32*2048))
			binary.BigEndian.PutUint32(wqe[4:], q.sq.Number()<<8|3)
			list := seg(2048, p.key.Key(), p.addr)
			b.ResetTimer()
			for i := 0; i < b.N; i += 32 {
				for range 32 {
					binary.BigEndian.PutUint16(wqe[1:], q.sq.pc)
					copy(q.sq.ring.Bytes()[int(q.sq.pc)%32*64:], wqe)
					q.sq.pc++
				}
				q.sq.last = binary.BigEndian.Uint64(wqe)
				q.sq.doorbell()
				for range 32 {
					copy(p.rq.ring.Bytes()[int(p.rq.pc)%32*16:], list)
					p.rq.pc++
				}
				p.rq.rec.StoreBE32(0, uint32(p.rq.pc))
				for _, c := range []*testCQ{q.tx, p.rx} {
					c.ci += 32
					c.rec.StoreBE32(0, c.ci&0xffffff)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pkts/s")
			if c := y.nic.Counters(); c.Drops.OutOfBuffer > 64 {
				b.Errorf("%+v", c.Drops)
			}
		})
	}
}

// BenchmarkLSO is 32 KB of payload in one WQE, cut into 23 packets and received.
func BenchmarkLSO(b *testing.B) {
	for _, can := range []Offload{0, OffloadCsum | OffloadTSO4} {
		b.Run(fmt.Sprintf("offloads %d", can), func(b *testing.B) {
			wa, wb := PairCarrying(can)
			r := newSendRig(b, Config{}, 0)
			y := newEnd(b, wb, 2, 1)
			p := y.pairs[0]
			if err := r.nic.wire.unplug(); err != nil {
				b.Fatal(err)
			}
			if err := r.nic.ConnectWire(wa); err != nil {
				b.Fatal(err)
			}
			const payload = 32000
			hdr := tcpSegment(0, 0, 0x10)[:66]
			copy(hdr, p.mac[:])
			e := append(ethSeg(0xc0, 1448, 66)[:14], hdr...)
			w := join(ctrl(0x0e, 7), e, seg(payload, r.key.Key(), r.addr))
			list := seg(2048, p.key.Key(), p.addr)
			b.SetBytes(payload)
			b.ResetTimer()
			for range b.N {
				r.sq.post(w)
				r.sq.doorbell()
				for range 23 {
					copy(p.rq.ring.Bytes()[int(p.rq.pc)%32*16:], list)
					p.rq.pc++
				}
				p.rq.rec.StoreBE32(0, uint32(p.rq.pc))
				r.cq.ci++
				r.cq.rec.StoreBE32(0, r.cq.ci&0xffffff)
				p.rx.ci += 23
				p.rx.rec.StoreBE32(0, p.rx.ci&0xffffff)
			}
			if c := y.nic.Counters(); c.Slice.RxPackets < uint64(b.N)*20 {
				b.Errorf("%+v", c)
			}
		})
	}
}
