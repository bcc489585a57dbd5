package rdma

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// Two stacks on an in-memory cable, one process: the time includes both ends and the software NICs
// between them. cpu-ns/op is the processor time of the process, which depends less on the load of
// the machine.

// cpuTime is the processor time this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var benchSetups = []struct {
	name string
	setup
}{
	{"default", setup{}},
	{"NoMerge", setup{opts: Options{NoMerge: true}}},
	{"NoSegmentation", setup{opts: Options{NoSegmentation: true}}},
	{"ACKOff", setup{acks: ACKOptions{Off: true}}},
}

func BenchmarkBulk(b *testing.B) {
	for _, bc := range benchSetups {
		b.Run(bc.name, func(b *testing.B) {
			bc.dv = dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}
			server, client := pair(b, bc.setup)
			benchBulk(b, server, client)
		})
	}
}

func benchBulk(b *testing.B, server, client *host) {
	ln := server.listen(b, server.v4, 80)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := ln.Accept(); err == nil {
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, make([]byte, 256<<10))
		}
	}()
	conn := client.dial(b, server.v4, 80)
	chunk := make([]byte, 256<<10)
	b.SetBytes(int64(len(chunk)))
	start := cpuTime(b)
	for b.Loop() {
		if _, err := conn.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	conn.Close()
	<-done
	b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
	s := server.ep.Stats()
	b.ReportMetric(float64(s.RxPackets)/float64(b.N), "rx-pkts/op")
	b.ReportMetric(float64(s.TxPackets)/float64(b.N), "acks/op")
}

func BenchmarkRequest(b *testing.B) {
	for _, bc := range benchSetups {
		b.Run(bc.name, func(b *testing.B) {
			bc.dv = dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}
			server, client := pair(b, bc.setup)
			go echo(server.listen(b, server.v4, 80))
			b.SetParallelism(32)
			b.ReportAllocs()
			start := cpuTime(b)
			b.RunParallel(func(pb *testing.PB) {
				conn := client.dial(b, server.v4, 80)
				buf := make([]byte, 1024)
				for pb.Next() {
					if _, err := conn.Write(buf); err != nil {
						b.Error(err)
						return
					}
					if _, err := io.ReadFull(conn, buf); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(server.ep.Stats().TxPackets)/float64(b.N), "tx-pkts/op")
		})
	}
}
