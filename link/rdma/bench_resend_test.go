package rdma

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// resendLane is a pair of hosts and the times of its transfers.
type resendLane struct {
	name           string
	server, client *host
	done           chan int64 // bytes of a transfer that has ended
	took, cpu      time.Duration
	slowest        time.Duration
	stalled        int
}

// newResendLane makes the hosts. With off their link retransmits nothing.
func newResendLane(b *testing.B, name string, loss float64, off bool) *resendLane {
	l := &resendLane{name: name, done: make(chan int64, 1)}
	l.server, l.client = pair(b, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}},
		faults: wire.FaultConfig{Drop: loss, Seed: 1}})
	if off {
		l.server.ep.flows.Close()
		l.client.ep.flows.Close()
	}
	ln := l.server.listen(b, l.server.v4, 80)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.SetDeadline(time.Now().Add(stallTime))
			n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, make([]byte, 256<<10))
			conn.Close()
			l.done <- n
		}
	}()
	return l
}

// stallTime is the time after which a transfer counts as stalled forever.
const stallTime = 20 * time.Second

// transfer sends size bytes over a connection of their own.
func (l *resendLane) transfer(b *testing.B, size int) {
	var conn net.Conn = l.client.dial(b, l.server.v4, 80)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(stallTime))
	start, cpu := time.Now(), cpuTime(b)
	conn.Write(make([]byte, size))
	conn.Close()
	if n := <-l.done; n != int64(size) {
		l.stalled++
		return
	}
	took := time.Since(start)
	l.took, l.cpu, l.slowest = l.took+took, l.cpu+cpuTime(b)-cpu, max(l.slowest, took)
}

// BenchmarkResend is bulk with and without the link's own retransmissions, in turns.
func BenchmarkResend(b *testing.B) {
	const size = 4 << 20
	for _, loss := range []float64{0, 0.01} {
		b.Run(fmt.Sprint("loss ", loss), func(b *testing.B) {
			lanes := []*resendLane{newResendLane(b, "with", loss, false),
				newResendLane(b, "without", loss, true)}
			b.Cleanup(func() { // before the hosts of either are looked at for workers
				for _, l := range lanes {
					l.server.ep.Close()
					l.client.ep.Close()
				}
			})
			b.SetBytes(2 * size)
			for i := 0; b.Loop(); i++ {
				lanes[i%2].transfer(b, size)
				lanes[1-i%2].transfer(b, size)
			}
			for _, l := range lanes {
				n := float64(max(1, b.N-l.stalled))
				b.ReportMetric(n*size/1e6/max(1e-9, l.took.Seconds()), l.name+"-MB/s")
				b.ReportMetric(float64(l.cpu.Microseconds())/n/1e3, l.name+"-cpu-ms/op")
				b.ReportMetric(float64(l.slowest.Milliseconds()), l.name+"-slowest-ms")
				b.ReportMetric(float64(l.stalled), l.name+"-stalled")
			}
		})
	}
}
