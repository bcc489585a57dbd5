package filter

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"unicode"
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
	b.Run("entries", func(b *testing.B) {
		denied := newFilter(b, list)
		sources := usualPackets("segment", 4096)
		for _, ip := range sources {
			a, _ := netip.AddrFromSlice(ip[12:16])
			if err := denied.Deny(netip.PrefixFrom(a, 32), 0); err != nil {
				b.Fatal(err)
			}
		}
		benchmarkBatches(b, "deny-syn", denied, usualPackets("syn", 4096))
		benchmarkBatches(b, "pass", denied, usualPackets("other-segment", 4096))
	})
	few := newFilter(b, "chain input { policy drop; ip saddr 10.0.0.0/8 drop; "+
		"tcp dport 443 accept; }")
	benchmarkBatches(b, "one-prefix-segment", few, usualPackets("segment", 4096))
	prefixes := randomPrefixes("mixed", 10_000)
	several := newFilter(b, strings.Replace(denying(prefixes), "policy drop;", "policy drop; "+
		"ip saddr 10.0.0.0/8 tcp dport 1-9 drop; ip saddr 192.0.2.0/24 accept; "+
		"ip saddr { 1.0.0.0/16, 192.168.0.0/16 } udp dport 1-9 accept;", 1))
	benchmarkBatches(b, "denied-beside-others", several,
		packetsFrom(prefixes, usualPackets("syn", 4096)))
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
		case "segment6", "datagram6", "syn6":
			src, dst = fmt.Sprintf("2a%02x:%x:%x::9", r.IntN(256), r.IntN(65536),
				r.IntN(65536)), "2001:db8::10"
		}
		switch kind {
		case "segment", "other-segment", "segment6":
			all[i] = packet(src, dst, protoTCP, flagACK, 4000, 443)
		case "syn", "syn6":
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

// BenchmarkDenied judges packets from sources that a list of prefixes denies, in networks of 256,
// of all sizes, and one by one; and beside them what it lets in.
func BenchmarkDenied(b *testing.B) {
	for _, list := range []string{"networks", "mixed", "hosts", "networks6"} {
		for _, n := range []int{10, 1000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s=%d", list, n), func(b *testing.B) {
				prefixes := randomPrefixes(list, n)
				f := newFilter(b, denying(prefixes))
				family := strings.TrimFunc(list, unicode.IsLetter)
				for _, kind := range []string{"syn", "datagram"} {
					for name, sources := range map[string]int{"one": 1, "many": 4096} {
						benchmarkBatches(b, kind+"/"+name, f,
							packetsFrom(prefixes, usualPackets(kind+family, sources)))
					}
				}
				benchmarkBatches(b, "passed/many", f, usualPackets("segment"+family, 4096))
			})
		}
	}
}

// randomPrefixes returns prefixes of sources of usualPackets.
func randomPrefixes(list string, n int) (all []netip.Prefix) {
	r := rand.New(rand.NewPCG(36, 4))
	for range n {
		a, bits := netip.AddrFrom4([4]byte{uint8(1 + r.IntN(200)), uint8(r.IntN(256)),
			uint8(r.IntN(256)), uint8(r.IntN(256))}), 24
		switch list {
		case "mixed":
			bits = []int{20, 22, 23, 24, 24, 24, 25, 28, 32, 32}[r.IntN(10)]
		case "hosts":
			bits = 32
		case "networks6":
			a, bits = netip.AddrFrom16([16]byte{0x2a, uint8(r.IntN(256)), uint8(r.IntN(256)),
				uint8(r.IntN(256)), uint8(r.IntN(256)), uint8(r.IntN(256))}), 48
		}
		all = append(all, netip.PrefixFrom(a, bits).Masked())
	}
	return all
}

// denying returns the list of manyPrefixes with the prefixes of one family.
func denying(prefixes []netip.Prefix) string {
	var b strings.Builder
	b.WriteString("chain input { policy drop; ip")
	if prefixes[0].Addr().Is6() {
		b.WriteString("6")
	}
	b.WriteString(" saddr {")
	for i, p := range prefixes {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	b.WriteString("} drop; tcp dport { 80, 443 } accept; udp dport 53 accept; }")
	return b.String()
}

// packetsFrom gives packets sources in prefixes, which it takes in turn.
func packetsFrom(prefixes []netip.Prefix, packets [][]byte) [][]byte {
	r := rand.New(rand.NewPCG(36, 6))
	done := map[*byte]bool{}
	for i, ip := range packets {
		if done[&ip[0]] {
			continue
		}
		done[&ip[0]] = true
		p := prefixes[i%len(prefixes)]
		first, family := addressOf(p.Addr())
		if last := first.lastOf(family, p.Bits()); family == 4 {
			a := uint32(first.hi + r.Uint64N(last.hi-first.hi+1))
			binary.BigEndian.PutUint32(ip[12:], a)
		} else {
			binary.BigEndian.PutUint64(ip[8:], first.hi|r.Uint64()&(first.hi^last.hi))
		}
	}
	return packets
}

// benchmarkBatches judges packets in batches of 64.
func benchmarkBatches(b *testing.B, name string, f *Filter, packets [][]byte) {
	b.Run(name, func(b *testing.B) {
		var batch Batch
		for i := 0; i < b.N; i += 64 {
			at := i & 4095
			judgeBatch(&batch, f, packets[at:at+min(64, b.N-i)])
		}
	})
}

// judgeBatch judges packets as a receive worker does.
func judgeBatch(batch *Batch, f *Filter, packets [][]byte) (drops int) {
	batch.Begin(f)
	for _, p := range packets {
		if l := batch.Look(p); !l.Passes() && batch.Decide(p, l) != "" {
			drops++
		}
	}
	batch.End()
	return drops
}
