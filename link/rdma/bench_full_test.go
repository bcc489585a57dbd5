package rdma

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// BenchmarkFullRing has 16 flows send faster than the sender's NIC, which delays its completions:
// per delay the staging memory's contents, 1 MiB, are sent.
func BenchmarkFullRing(b *testing.B) {
	for _, delay := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond} {
		b.Run(fmt.Sprint(delay), func(b *testing.B) {
			server, client := pair(b,
				setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
			client.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLateCompletion, Delay: delay})
			go swallow(server.listen(b, server.v4, 80))
			const flows, size = 16, 64 << 10
			b.SetBytes(flows * size)
			var wg sync.WaitGroup
			start := cpuTime(b)
			for range flows {
				conn := client.dial(b, server.v4, 80)
				wg.Go(func() {
					chunk := make([]byte, size)
					for range b.N {
						if _, err := conn.Write(chunk); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
			s := client.ep.Stats()
			b.ReportMetric(float64(s.TxWaits)/float64(b.N), "waits/op")
			b.ReportMetric(float64(s.TxDropped)/float64(b.N), "drops/op")
			b.ReportMetric(float64(s.TxBacklogMax), "backlog-max")
		})
	}
}

// swallow reads and discards the data of all connections.
func swallow(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, make([]byte, 256<<10))
			conn.Close()
		}()
	}
}
