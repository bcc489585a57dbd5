package dv_test

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	simframe "github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// sendBurst sends the frames to the port in one go, as a busy wire would: the
// NIC compresses within such a burst.
func (s *sim) sendBurst(t *testing.T, frames [][]byte) {
	t.Helper()
	batch := make([]simframe.Frame, len(frames))
	for i, f := range frames {
		batch[i].Data = f
	}
	if n, err := s.wire.wire.Send(batch); n != len(frames) {
		t.Fatalf("wire took %d of %d frames: %v", n, len(frames), err)
	}
}

// A burst of similar frames comes in compressed completions, if the device can
// and nobody forbids it, and is the same burst either way.
func TestCompression(t *testing.T) {
	without, sumOnly := simnic.DefaultCaps(), simnic.DefaultCaps()
	without.Compression = false
	sumOnly.MiniFormats = 1 << simnic.MiniChecksum
	for _, c := range []struct {
		name string
		nic  simnic.Config
		cfg  dv.Config
		on   bool
	}{
		{"default", simnic.Config{}, dv.Config{}, true},
		{"off by choice", simnic.Config{}, dv.Config{Tuning: dv.Tuning{NoCompression: true}},
			false},
		{"device without", simnic.Config{Caps: without}, dv.Config{}, false},
		{"device without this kind", simnic.Config{Caps: sumOnly}, dv.Config{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, c.nic, kernel.Config{})
			c.cfg.Rings.RxQueueSize = 128
			d := s.open(t, c.cfg)
			f := flows(1)["TCP over IPv4"]
			for round := range 60 {
				var burst [][]byte
				for i := range 100 {
					p := packet(f.Src, f.Dst, 6, 10+i)
					burst = append(burst, p)
				}
				s.sendBurst(t, burst)
				got := poll(d.Rx(0))
				if len(got) != len(burst) {
					t.Fatalf("round %d: %d of %d frames", round, len(got), len(burst))
				}
				for i, p := range got {
					if !bytes.Equal(p.Data, burst[i]) || p.Flags&dv.RxHash == 0 {
						t.Fatalf("round %d frame %d: %d bytes, flags %b",
							round, i, len(p.Data), p.Flags)
					}
					if p.Hash != got[0].Hash {
						t.Fatalf("round %d frame %d: hash %#x, the first of its flow has %#x",
							round, i, p.Hash, got[0].Hash)
					}
				}
			}
			n, mine := s.nic.Counters().CompressedCQEs, d.Stats().Rx[0].Compressed
			if n != mine || c.on != (n > 5000) {
				t.Errorf("%d of 6000 completions compressed, the queue counted %d", n, mine)
			}
		})
	}
}
