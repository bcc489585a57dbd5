package rdma

import (
	"context"
	"io"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// BenchmarkCapture is BenchmarkBulk with a capture of every frame at the server, and without.
func BenchmarkCapture(b *testing.B) {
	for name, opts := range map[string]*capture.Options{"off": nil, "headers": {Snaplen: 128},
		"whole": {}, "filter": {Filter: "udp port 53"}} {
		b.Run(name, func(b *testing.B) {
			server, client := pair(b,
				setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
			if opts != nil {
				tap, err := capture.New(*opts)
				if err != nil {
					b.Fatal(err)
				}
				server.ep.AddTap(tap)
				go tap.WriteTo(context.Background(), io.Discard, capture.About{}, 0)
				defer tap.Close()
			}
			benchBulk(b, server, client)
		})
	}
}
