package simnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// BenchmarkFrame is one frame from a send queue over a pair of wires into a
// receive queue, batch to a doorbell.
func BenchmarkFrame(b *testing.B) {
	for _, c := range []struct{ size, batch int }{{64, 1}, {64, 32}, {1514, 32}} {
		size, batch := c.size, c.batch
		b.Run(fmt.Sprintf("%dB/%d", size, batch), func(b *testing.B) {
			wa, wb := wire.Pair()
			x, y := newEnd(b, wa, 1, 1), newEnd(b, wb, 2, 1)
			q, p := x.pairs[0], y.pairs[0]
			q.send(p.mac, 64, size)
			p.receive(b)
			wqe := concat(ctrl(0x0a, 3), ethSeg(0xc0, 0, 0), seg(size, q.key.Key(), q.addr+32*2048))
			binary.BigEndian.PutUint32(wqe[4:], q.sq.Number()<<8|3)
			list := seg(2048, p.key.Key(), p.addr)
			b.ResetTimer()
			for i := 0; i < b.N; i += batch {
				for range batch {
					binary.BigEndian.PutUint16(wqe[1:], q.sq.pc)
					copy(q.sq.ring.Bytes()[int(q.sq.pc)%32*64:], wqe)
					q.sq.pc++
				}
				q.sq.last = binary.BigEndian.Uint64(wqe)
				q.sq.doorbell()
				for range batch {
					copy(p.rq.ring.Bytes()[int(p.rq.pc)%32*16:], list)
					p.rq.pc++
				}
				p.rq.rec.StoreBE32(0, uint32(p.rq.pc))
				for _, c := range []*testCQ{q.tx, p.rx} {
					c.ci += uint32(batch)
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

// BenchmarkLSO is 64 KB of payload in one WQE, cut into 45 packets by the sender or by the
// receiver and received with compressed completions, into buffers that exceed a second-level cache.
func BenchmarkLSO(b *testing.B) {
	for _, bench := range []struct {
		name string
		can  frame.Offload
	}{{"cut by the sender", 0}, {"cut by the receiver", frame.OffloadCsum | frame.OffloadTSO4}} {
		b.Run(bench.name, func(b *testing.B) {
			const packets, mss = 45, 1448
			wa, wb := wire.PairCarrying(bench.can)
			x, y := newNIC(b, Config{}), newNIC(b, Config{Seed: 1})
			if err := errors.Join(x.ConnectWire(wa), y.ConnectWire(wb)); err != nil {
				b.Fatal(err)
			}
			tx := newCQ(b, x, 6, nil)
			sq := newSQ(b, x, tx, 5, nil)
			src := mem(b, packets*mss)
			from := newKey(b, x, src, nil)
			rx := newCQ(b, y, 11, func(a *CQAttr) { a.Compress = true })
			rq := newRQ(b, y, rx, 10, 4, func(a *RQAttr) { a.DelayDrop = true })
			dst := mem(b, 1024*2048)
			to := newKey(b, y, dst, nil)
			for i := range 1024 {
				rq.post(seg(2048, to.Key(), dst.Addr()+uint64(i)*2048))
			}
			hdr := tcpSegment(0, 0, 0x10)[:66]
			table, err := y.CreateRQT(RQTAttr{RQs: []*RQ{rq.RQ}})
			if err != nil {
				b.Fatal(err)
			}
			a := hashTIR(false, false)
			a.Table = table
			flowTo(b, y, [6]byte(hdr), newTIR(b, y, a))
			w := concat(ctrl(0x0e, 7), append(ethSeg(0xc0, mss, 66)[:14], hdr...),
				seg(packets*mss, from.Key(), src.Addr()))
			b.ResetTimer()
			for range b.N {
				sq.post(w)
				sq.doorbell()
				rq.pc += packets
				rq.rec.StoreBE32(0, uint32(rq.pc))
				tx.ci++
				tx.rec.StoreBE32(0, tx.ci&0xffffff)
				rx.ci += packets
				rx.rec.StoreBE32(0, rx.ci&0xffffff)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packets, "ns/packet")
			if c := y.Counters(); c.Slice.RxPackets != uint64(b.N)*packets {
				b.Errorf("%+v", c)
			}
		})
	}
}
