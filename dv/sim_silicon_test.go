package dv_test

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// Where no document says what silicon does the driver works with either: whether a receive
// queue takes a doorbell record written before it was ready, and whether completions name a
// descriptor by a free-running counter or by its place in the ring. So it is after a reset.
func TestEitherSilicon(t *testing.T) {
	for _, nic := range []struct {
		name string
		cfg  simnic.Config
	}{
		{"record taken, counter", simnic.Config{}},
		{"record ignored", simnic.Config{RecordAfterReady: true}},
		{"ring index", simnic.Config{RingIndex: true}},
		{"record ignored, ring index", simnic.Config{RecordAfterReady: true, RingIndex: true}},
	} {
		for _, ring := range []struct {
			name string
			cfg  dv.Config
		}{
			{"compressed", dv.Config{}},
			{"uncompressed", dv.Config{Tuning: dv.Tuning{NoCompression: true}}},
			{"several buffers", dv.Config{NIC: dv.NIC{MTU: 9000}}},
			{"striding", dv.Config{NIC: dv.NIC{Rings: dv.Rings{Striding: true}}}},
		} {
			t.Run(nic.name+"/"+ring.name, func(t *testing.T) {
				c := nic.cfg
				c.MTU = ring.cfg.MTU
				wrapsAfterError(t, c, ring.cfg)
			})
		}
	}
}

// wrapsAfterError has a device's rings wrap, a receive ring reset because of an error, and the
// rings wrap again. It returns the device's counters.
func wrapsAfterError(t *testing.T, nic simnic.Config, cfg dv.Config) dv.Stats {
	t.Helper()
	s := newSim(t, nic, kernel.Config{})
	cfg.Rings.RxQueueSize, cfg.Rings.TxQueueSize = 64, 64
	d := s.open(t, cfg)
	wrapRings(t, s, d)
	s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultReceiveError, Count: 1, Syndrome: 4})
	s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 100))
	poll(d.Rx(0))
	wrapRings(t, s, d)
	st := d.Stats()
	if st.Rx[0].Resets != 1 || st.Tx[0].Resets != 0 {
		t.Errorf("%d resets of the receive queue, want 1; %d of the send queue, want 0",
			st.Rx[0].Resets, st.Tx[0].Resets)
	}
	return st
}

// wrapRings has d receive and send so many frames that both rings wrap more than once.
func wrapRings(t *testing.T, s *sim, d *dv.Device) {
	t.Helper()
	const burst = 16
	for round := range 60 {
		var sent [][]byte
		for i := range burst {
			sent = append(sent, frame(ourMAC, peerMAC, 0x88b5, 1400+i))
		}
		s.sendBurst(t, sent)
		pkts := poll(d.Rx(0))
		if len(pkts) != burst {
			t.Fatalf("round %d: %d frames of %d", round, len(pkts), burst)
		}
		for i, p := range pkts {
			if !bytes.Equal(p.Data, sent[i]) {
				t.Fatalf("round %d: frame %d differs", round, i)
			}
			if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC,
				0x88b5, 100+i)}}); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		d.Tx(0).Flush()
		d.Tx(0).Reclaim()
		if n := len(s.wire.drain()); n != burst {
			t.Fatalf("round %d: %d frames sent of %d", round, n, burst)
		}
	}
}
