package dv_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// Frames of all sizes come packed into slabs, compressed or not, are whole, and
// can be sent on from where they are; then all memory is back.
func TestStriding(t *testing.T) {
	for _, c := range []struct {
		name  string
		nic   simnic.Config
		cfg   dv.Config
		sizes int
		zips  bool
	}{
		{"default", simnic.Config{}, dv.Config{}, 1500, true},
		{"uncompressed", simnic.Config{}, dv.Config{Tuning: dv.Tuning{NoCompression: true}}, 1500,
			false},
		{"jumbo", simnic.Config{MTU: 9000}, dv.Config{NIC: dv.NIC{MTU: 9000}}, 9000, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, c.nic, kernel.Config{})
			c.cfg.Rings.Striding, c.cfg.Rings.RxQueueSize = true, 128
			d := s.open(t, c.cfg)
			free, total, slabs := d.Pool().Free(), 0, map[dv.Frame]bool{}
			f := flows(1)["UDP over IPv4"]
			for round := range 80 {
				var burst [][]byte
				for i := range 30 {
					burst = append(burst,
						packet(f.Src, f.Dst, f.Proto, 20+(round*31+i*131)%(c.sizes-100)))
				}
				s.sendBurst(t, burst)
				pkts := make([]dv.Packet, 64)
				n := d.Rx(0).Poll(pkts)
				if n != len(burst) {
					t.Fatalf("round %d: %d of %d frames", round, n, len(burst))
				}
				for i := range pkts[:n] {
					p := &pkts[i]
					if !bytes.Equal(p.Data, burst[i]) ||
						p.Flags&dv.RxL4OK == 0 {
						t.Fatalf("round %d frame %d: %d bytes of %d, flags %b", round, i,
							len(p.Data), len(burst[i]), p.Flags)
					}
					slabs[p.Frame] = true
					total++
					if i%3 != 0 {
						continue
					}
					copy(p.Data, peerMAC)
					if err := d.Tx(0).PostFrame(p.Frame, d.Pool().FrameSize()-cap(p.Data),
						len(p.Data), 0); err != nil {
						t.Fatal(err)
					}
					p.Frame = dv.NoFrame
				}
				d.Rx(0).Release(pkts[:n])
				d.Tx(0).Flush()
				for i, g := range s.wire.drain() {
					if want := burst[3*i]; !bytes.Equal(g[6:], want[6:]) {
						t.Fatalf("round %d: frame %d sent on differs", round, i)
					}
				}
				d.Tx(0).Reclaim()
			}
			if total < 10*len(slabs) {
				t.Errorf("%d frames in %d buffers: not packed", total, len(slabs))
			}
			if n := d.Pool().Free(); n < free-1 {
				t.Errorf("%d buffers free, there were %d", n, free)
			}
			if n := d.Stats().Rx[0].Compressed; (n > 0) != c.zips {
				t.Errorf("%d compressed", n)
			}
		})
	}
}

// A device without striding rings, or without those of our geometry, says so.
func TestStridingRefused(t *testing.T) {
	for _, change := range []func(*simnic.Caps){
		func(c *simnic.Caps) { c.StridingRQ = false },
		func(c *simnic.Caps) { c.LogMinStride = 9 },
		func(c *simnic.Caps) { c.LogMaxStrides = 8 },
	} {
		caps := simnic.DefaultCaps()
		change(&caps)
		s := newSim(t, simnic.Config{Caps: caps}, kernel.Config{})
		if _, err := dv.Open(t.Context(),
			s.config(dv.Config{NIC: dv.NIC{Rings: dv.Rings{Striding: true}}})); !errors.Is(err,
			dv.ErrNotSupported) {
			t.Errorf("opened: %v", err)
		}
	}
}
