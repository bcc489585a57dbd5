package dv_test

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// mixed is n frames of lengths that go inline, into staging memory and, where
// zeroCopy says so, straight from a frame buffer.
func sendMixed(t *testing.T, d *dv.Device, n int) (want [][]byte) {
	t.Helper()
	q := d.Tx(0)
	for i := range n {
		f := frame(peerMAC, ourMAC, 0x88b5, []int{60, 98, 99, 300, 1514}[i%5])
		f[20] = byte(i)
		want = append(want, f)
		if i%3 == 2 {
			out, ok := d.Pool().Get()
			if !ok {
				t.Fatal("no frame")
			}
			copy(d.Pool().Bytes(out), f)
			if err := q.PostFrame(out, 0, len(f), 0); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := q.Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
	return want
}

// With multi-packet descriptors the NIC executes far fewer of them than it
// sends frames; without (by choice, or because the device lacks them or wants
// headers inline) one each. The wire does not tell the difference.
func TestMultiPacketSend(t *testing.T) {
	caps := func(change func(*simnic.Caps)) simnic.Config {
		c := simnic.DefaultCaps()
		change(&c)
		return simnic.Config{Caps: c}
	}
	for _, c := range []struct {
		name string
		nic  simnic.Config
		cfg  dv.Config
		on   bool
	}{
		{"default", simnic.Config{}, dv.Config{}, true},
		{"all inline", simnic.Config{}, dv.Config{Tuning: dv.Tuning{TxInline: 900}}, true},
		{"off by choice", simnic.Config{}, dv.Config{Tuning: dv.Tuning{NoMultiPacketSend: true}},
			false},
		{"device without", caps(func(c *simnic.Caps) { c.EnhancedMPW = false }), dv.Config{},
			false},
		{"device wants headers inline",
			caps(func(c *simnic.Caps) { c.MinInline = simnic.InlineL2 }), dv.Config{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, c.nic, kernel.Config{})
			d := s.open(t, c.cfg)
			const rounds, n = 40, 50 // several passes over the ring
			for range rounds {
				want := sendMixed(t, d, n)
				got := s.wire.drain()
				if len(got) != n {
					t.Fatalf("%d of %d frames on the wire", len(got), n)
				}
				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("frame %d differs", i)
					}
				}
				d.Tx(0).Reclaim()
			}
			if d.Pool().Free() != 256 || d.Tx(0).Free() != 1024 {
				t.Errorf("%d frames and %d blocks free", d.Pool().Free(), d.Tx(0).Free())
			}
			wqes, stats := s.nic.Counters().SendWQEs, d.Stats().Tx[0]
			if c.on && (wqes > rounds*n/4 || stats.MultiPacket < rounds*n*9/10) || !c.on &&
				(wqes != rounds*n || stats.MultiPacket != 0) {
				t.Errorf("%d frames in %d descriptors, stats %+v", rounds*n, wqes, stats)
			}
		})
	}
}

// Flags are common to a descriptor: frames that ask for checksums and frames
// that do not are not mixed, and a segmented packet ends the descriptor.
func TestMultiPacketFlags(t *testing.T) {
	s, d := usual(t, dv.Config{})
	f := flows(1)["UDP over IPv4"]
	for i := range 30 {
		b := packet(f.Src, f.Dst, f.Proto, 300)
		copy(b, peerMAC)
		b[40], b[41] = 0xbe, 0xef
		p := dv.TxPacket{Bufs: [][]byte{b}}
		if i/3%2 == 1 {
			p.Flags = dv.TxL4Csum
		}
		if err := d.Tx(0).Post(&p); err != nil {
			t.Fatal(err)
		}
	}
	d.Tx(0).Flush()
	for i, g := range s.wire.drain() {
		if filled := g[40] != 0xbe || g[41] != 0xef; filled != (i/3%2 == 1) {
			t.Errorf("frame %d: checksum filled in: %v", i, filled)
		}
	}
	if n := s.nic.Counters().SendWQEs; n != 10 {
		t.Errorf("%d descriptors for ten changes of flags", n)
	}
}

// A multi-packet descriptor that fails takes all its frames with it, once.
func TestMultiPacketRecovery(t *testing.T) {
	s, d := usual(t, dv.Config{})
	s.nic.SetHooks(&simnic.Hooks{SendWQE: func(*simnic.SQ, uint16) (uint8,
		uint8) {
		return 0x04, 0
	}})
	sendMixed(t, d, 25)
	s.nic.SetHooks(nil)
	d.Tx(0).Reclaim()
	if st := d.Stats().Tx[0]; st.Drops.Lost != 25 || st.Resets != 1 || d.Pool().Free() != 256 {
		t.Errorf("%d frames free, stats %+v", d.Pool().Free(), st)
	}
	s.wire.drain()
	sendMixed(t, d, 25)
	if n := len(s.wire.drain()); n != 25 {
		t.Errorf("%d frames sent after the recovery", n)
	}
}
