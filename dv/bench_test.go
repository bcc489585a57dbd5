package dv

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// The NIC costs nothing here: completions are written ahead, outside the
// timer, so that it is the driver that is measured.

func BenchmarkRxPollRelease(b *testing.B) {
	for _, batch := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprintf("64B/batch%d", batch), func(b *testing.B) {
			const entries = 4096
			r := newRxRig(b, entries, entries)
			pkts := make([]Packet, batch)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				b.StopTimer()
				r.receive(entries/2, 64)
				b.StartTimer()
				for range entries / 2 / batch {
					n := r.q.Poll(pkts)
					r.q.Release(pkts[:n])
					done += n
				}
			}
			b.StopTimer()
			if got := r.q.Stats().Packets; got < uint64(b.N) {
				b.Fatalf("%d packets, want %d", got, b.N)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pkts/s")
		})
	}
}

func BenchmarkTxPostFlushReclaim(b *testing.B) {
	for _, size := range []int{60, 1514} {
		for _, batch := range []int{1, 8, 32, 128} {
			b.Run(fmt.Sprintf("%dB/batch%d", size, batch), func(b *testing.B) {
				r := newTxRig(b, 1024, 1<<20, defaultLimits)
				frame := make([]byte, size)
				bufs := [1][]byte{frame}
				p := TxPacket{Bufs: bufs[:], Flags: TxL3Csum | TxL4Csum}
				r.q.page = &uverbs.Page{Mem: memory(b, 4096)}
				done := cqePrinter(b, r)
				b.ReportAllocs()
				b.ResetTimer()
				for n := 0; n < b.N; n += batch {
					for range batch {
						if err := r.q.Post(&p); err != nil {
							b.Fatal(err)
						}
					}
					r.q.Flush()
					done()
					r.q.Reclaim()
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pkts/s")
			})
		}
	}
}

// BenchmarkTxDatagrams sends 45 datagrams of 1400 bytes: as one packet for the NIC to cut up, and
// one by one.
func BenchmarkTxDatagrams(b *testing.B) {
	const size, count = 1400, 45
	header, payload := ipv4Bytes(42), make([]byte, size*count)
	for name, packets := range map[string][]TxPacket{
		"cut": {{Bufs: [][]byte{header, payload}, HdrLen: 42, MSS: size, UDP: true}},
		"single": slices.Repeat([]TxPacket{{Bufs: [][]byte{header, payload[:size]},
			Flags: TxL3Csum | TxL4Csum}}, count),
	} {
		b.Run(name, func(b *testing.B) {
			r := newTxRig(b, 1024, 1<<20, defaultLimits)
			r.q.page = &uverbs.Page{Mem: memory(b, 4096)}
			done := cqePrinter(b, r)
			b.SetBytes(size * count)
			b.ReportAllocs()
			for b.Loop() {
				for i := range packets {
					if err := r.q.Post(&packets[i]); err != nil {
						b.Fatal(err)
					}
				}
				r.q.Flush()
				done()
				r.q.Reclaim()
			}
		})
	}
}

// cqePrinter completes the last descriptor posted: one store of a word into a
// completion ring that is otherwise ready.
func cqePrinter(b *testing.B, r *txRig) func() {
	cqe := sent(0)
	return func() {
		start := uint16(r.q.last)
		cqe[0x3c], cqe[0x3d] = byte(start>>8), byte(start)
		r.nic.put(cqe)
	}
}
