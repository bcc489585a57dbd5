package tcpfix

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// BenchmarkLossyWire is half a megabyte in six answers on virtual time, with the link's own
// retransmissions and without, on the same seeds in turns.
func BenchmarkLossyWire(b *testing.B) {
	for _, loss := range []float64{0, 0.01, 0.05} {
		for _, gso := range []bool{true, false} {
			b.Run(fmt.Sprintf("loss %v/gso %v", loss, gso), func(b *testing.B) {
				var took, slowest [2]time.Duration
				var failed [2]int
				for seed := uint64(0); b.Loop(); seed++ {
					for i := range 2 {
						r := lossy{seed: seed, loss: loss, gso: gso, noResend: i == 1}.run()
						if !r.done {
							failed[i]++
							continue
						}
						took[i] += r.took
						slowest[i] = max(slowest[i], r.took)
					}
				}
				for i, name := range []string{"with", "without"} {
					n := float64(max(1, b.N-failed[i]))
					b.ReportMetric(float64(took[i].Microseconds())/n/1e3, name+"-ms")
					b.ReportMetric(float64(slowest[i].Milliseconds()), name+"-slowest-ms")
					b.ReportMetric(float64(failed[i]), name+"-failed")
				}
			})
		}
	}
}

// BenchmarkResendIdle is the cost of the resender without losses: a segment with data is sent, an
// ACK arrives.
func BenchmarkResendIdle(b *testing.B) {
	r := newResending()
	r.resender.clock = tcpip.NewStdClock()
	pkt := packetOf(ours(0, 1000))
	defer pkt.DecRef()
	out := hdr.ParseSent(pkt, r.seed)
	ack := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, TTL: 64, Ack: 1000, Flags: 0x10}.Bytes()
	in := hdr.Received(ack, hdrtest.Parse(ack), r.seed)
	seq := uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		seq += 1000
		binary.BigEndian.PutUint32(out.TCP()[4:], seq)
		r.sent(pkt, &out, false)
		r.received(&in)
	}
	if n := r.number.Load(); n != 0 {
		b.Fatalf("%d flows are kept", n)
	}
}
