package filter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// BenchmarkVerdict judges packets of usual kinds by lists with more and more prefixes. Of sources
// "one" is one, "many" are 4,096 at random, whose headers lie in 256 kB as those of a ring.
func BenchmarkVerdict(b *testing.B) {
	for _, n := range []int{0, 10, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("prefixes=%d", n), func(b *testing.B) {
			f := newFilter(b, manyPrefixes(n))
			for _, kind := range []string{"segment", "segment6", "datagram", "datagram6",
				"syn-dropped", "datagram-dropped"} {
				benchmarkBatches(b, kind+"/one", f, usualPackets(kind, 1))
				benchmarkBatches(b, kind+"/many", f, usualPackets(kind, 4096))
			}
		})
	}
}

// BenchmarkVerdictOf judges packets that more than the source and a port decides about.
func BenchmarkVerdictOf(b *testing.B) {
	list := manyPrefixes(10_000)
	dialled := newFilter(b, list)
	answers := usualPackets("answer", 4096)
	for _, ip := range answers {
		var p Packet
		p.Read(ip)
		out := p.reversed()
		src, dst := out.src.prefixFrom(4, 32).Addr(), out.dst.prefixFrom(4, 32).Addr()
		dialled.Send(packet(src.String(), dst.String(), protoTCP, flagSYN, out.sport, out.dport))
	}
	benchmarkBatches(b, "answers", dialled, answers)
	benchmarkBatches(b, "datagrams-dropped-beside-flows", dialled,
		usualPackets("datagram-dropped", 4096))
	denied := newFilter(b, list)
	sources := usualPackets("segment", 4096)
	for _, ip := range sources {
		a, _ := netip.AddrFromSlice(ip[12:16])
		if err := denied.Deny(netip.PrefixFrom(a, 32), 0); err != nil {
			b.Fatal(err)
		}
	}
	benchmarkBatches(b, "entries-deny-syn", denied, usualPackets("syn", 4096))
	benchmarkBatches(b, "entries-pass", denied, usualPackets("other-segment", 4096))
	limits := newFilter(b, limited)
	benchmarkBatches(b, "limits-segment", limits, usualPackets("segment", 4096))
	benchmarkBatches(b, "limits-syn", limits, usualPackets("syn", 4096))
	toOne := newFilter(b, "chain input { policy drop; ip daddr 192.0.2.10 tcp dport 443 accept; }")
	benchmarkBatches(b, "destination", toOne, usualPackets("segment", 4096))
}

// usualPackets makes packets of a kind from so many sources.
func usualPackets(kind string, sources int) [][]byte {
	r := rand.New(rand.NewPCG(36, 5))
	if kind == "other-segment" {
		r = rand.New(rand.NewPCG(36, 6))
	}
	all := make([][]byte, 4096)
	for i := range all {
		src, dst := fmt.Sprintf("%d.%d.%d.9", 1+r.IntN(200), r.IntN(256), r.IntN(256)), "192.0.2.10"
		switch kind {
		case "segment6", "datagram6":
			src, dst = fmt.Sprintf("2a%02x:%x:%x::9", r.IntN(256), r.IntN(65536),
				r.IntN(65536)), "2001:db8::10"
		}
		switch kind {
		case "segment", "other-segment", "segment6":
			all[i] = packet(src, dst, protoTCP, flagACK, 4000, 443)
		case "syn":
			all[i] = packet(src, dst, protoTCP, flagSYN, 4000, 443)
		case "answer":
			all[i] = packet(src, dst, protoTCP, flagACK, 8080, uint16(40000+i%8192))
		case "datagram", "datagram6":
			all[i] = packet(src, dst, protoUDP, 0, 4000, 53)
		case "syn-dropped":
			all[i] = packet(src, dst, protoTCP, flagSYN, 4000, 22)
		case "datagram-dropped":
			all[i] = packet(src, dst, protoUDP, 0, 4000, 123)
		}
		if i >= sources {
			all[i] = all[i%sources]
		}
	}
	return all
}

// benchmarkBatches judges packets in batches of 64.
func benchmarkBatches(b *testing.B, name string, f *Filter, packets [][]byte) {
	b.Run(name, func(b *testing.B) {
		var batch Batch
		for i := 0; i < b.N; {
			batch.Begin(f)
			for end := min(b.N, i+64); i < end; i++ {
				if l := batch.Look(packets[i&4095]); !l.Passes() {
					batch.Decide(packets[i&4095], l)
				}
			}
			batch.End()
		}
	})
}
