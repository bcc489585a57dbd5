package dv_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// Jumbo frames come in several buffers, small ones between them in one, are whole,
// and can be sent on from where they are; then all buffers are back.
func TestMultiSegment(t *testing.T) {
	inline := simnic.DefaultCaps()
	inline.MinInline = simnic.InlineL4
	for _, c := range []struct {
		name string
		nic  simnic.Config
		cfg  dv.Config
		segs int // most buffers of a frame
		zips bool
	}{
		{"default", simnic.Config{MTU: 9000}, dv.Config{}, 4, true},
		{"uncompressed", simnic.Config{MTU: 9000},
			dv.Config{Tuning: dv.Tuning{NoCompression: true}}, 4,
			false},
		{"headers inline", simnic.Config{MTU: 9000, Caps: inline}, dv.Config{}, 4, true},
		{"two segments", simnic.Config{MTU: 4000}, dv.Config{}, 2, true},
		{"largest MTU", simnic.Config{MTU: 16 << 10}, dv.Config{}, 8, true},
		{"one buffer", simnic.Config{MTU: 9000},
			dv.Config{Tuning: dv.Tuning{NoMultiSegment: true}}, 1, true},
		{"small MTU of a large port", simnic.Config{MTU: 9000}, dv.Config{NIC: dv.NIC{MTU: 1500}},
			1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, c.nic, kernel.Config{})
			c.cfg.Rings.RxQueueSize, c.cfg.Tuning.SpareFrames = 64, 64
			d := s.open(t, c.cfg)
			for _, feature := range d.Features() {
				if feature.Name == "multi-segment receive" && feature.On != (c.segs > 1) {
					t.Errorf("%+v", feature)
				}
			}
			f, long, most, free := flows(1)["UDP over IPv4"], uint64(0), 0, d.Pool().Free()
			for round := range 60 {
				var burst [][]byte
				for i := range 20 {
					burst = append(burst,
						packet(f.Src, f.Dst, f.Proto, 20+(round*31+i*1373)%(d.MTU()-50)))
				}
				s.sendBurst(t, burst)
				pkts := make([]dv.Packet, 64)
				n := d.Rx(0).Poll(pkts)
				if n != len(burst) {
					t.Fatalf("round %d: %d of %d frames", round, n, len(burst))
				}
				for i := range pkts[:n] {
					p := &pkts[i]
					pieces := d.Rx(0).Segments(nil, p)
					if got := bytes.Join(pieces, nil); !bytes.Equal(got, burst[i]) ||
						p.Size() != len(got) || p.Flags&dv.RxL4OK == 0 {
						t.Fatalf("round %d frame %d: %d bytes in %d pieces of %d, flags %b", round,
							i, len(got), len(pieces), len(burst[i]), p.Flags)
					}
					if most = max(most, len(pieces)); len(pieces) > 1 {
						long++
					}
					if i%3 != 0 {
						continue
					}
					copy(p.Data, peerMAC)
					if err := d.Tx(0).PostFrame(p.Frame, 0, p.Size(), 0); err != nil {
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
			st := d.Stats().Rx[0]
			if st.Segmented != long || (long > 0) != (c.segs > 1) || most != c.segs ||
				(st.Compressed > 0) != c.zips || st.Resets != 0 {
				t.Errorf("%d frames in up to %d buffers, counted %+v", long, most, st)
			}
			// but for some that the device wants inline as a whole
			if tx := d.Stats().Tx[0]; tx.ZeroCopy < 400 {
				t.Errorf("%d frames sent on without copying", tx.ZeroCopy)
			}
			d.Rx(0).Refill()
			if n := d.Pool().Free(); n != free {
				t.Errorf("%d buffers free, there were %d", n, free)
			}
		})
	}
}

// A descriptor that takes less than the port lets through costs the frame, not the
// queue: in a completion, or silently, as the firmware likes.
func TestMultiSegmentTooLong(t *testing.T) {
	for _, silent := range []bool{false, true} {
		s := newSim(t, simnic.Config{MTU: 9000, DropTooLong: silent}, kernel.Config{})
		d := s.open(t, dv.Config{NIC: dv.NIC{MTU: 4000}})
		s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 9000))
		if n := len(poll(d.Rx(0))); n != 0 {
			t.Errorf("silent %v: %d frames", silent, n)
		}
		want := uint64(1)
		if silent {
			want = 0
		}
		if st := d.Stats().Rx[0]; st.Drops.TooLong != want || st.Resets != 0 {
			t.Errorf("silent %v: drops %+v, %d resets", silent, st.Drops, st.Resets)
		}
		long := frame(ourMAC, peerMAC, 0x88b5, 4014)
		s.wire.send(t, long)
		if got := poll(d.Rx(0)); len(got) != 1 || !bytes.Equal(got[0].Data, long) {
			t.Errorf("silent %v: %d frames after it", silent, len(got))
		}
	}
}

// A device whose receive descriptors are too short says what to do.
func TestMultiSegmentRefused(t *testing.T) {
	caps := simnic.DefaultCaps()
	caps.MaxRecvWQE = 32
	s := newSim(t, simnic.Config{MTU: 9000, Caps: caps}, kernel.Config{})
	if _, err := dv.Open(t.Context(), s.config(dv.Config{})); !errors.Is(err, dv.ErrNotSupported) {
		t.Errorf("opened: %v", err)
	}
	d := s.open(t, dv.Config{Tuning: dv.Tuning{NoMultiSegment: true}})
	exchange(t, s, d, d.Tx(0))
}
