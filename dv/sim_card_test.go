package dv_test

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// onCards runs a test on each card there is.
func onCards(t *testing.T, test func(t *testing.T, card simnic.Card)) {
	for _, card := range simnic.Cards() {
		t.Run(card.Name, func(t *testing.T) { test(t, card) })
	}
}

// The device is told as the card that it is, and what that lacks or demands is seen and kept to.
func TestCardIsTold(t *testing.T) {
	onCards(t, func(t *testing.T, card simnic.Card) {
		s := newSim(t, simnic.Config{Card: card.Name}, kernel.Config{})
		d := s.open(t, dv.Config{})
		inline := 0
		if card.Caps.MinInline == simnic.InlineL2 {
			inline = 18
		}
		c := d.Caps()
		if c.Firmware != card.FirmwareVersion() || c.ClockKHz != uint64(card.Caps.FrequencyKHz) ||
			c.MinInline != inline || c.MultiPacketSend != card.Caps.EnhancedMPW ||
			c.MaxTSO == 0 || !c.TxCsum || !c.RxCsum || !c.VLANStrip || !c.SharedMulticast {
			t.Errorf("capabilities %+v", c)
		}
		for i := range d.NumTx() {
			exchange(t, s, d, d.Tx(i))
		}
	})
}

// A virtual function demands what its card does, and sends and receives as its own MAC.
func TestCardVirtual(t *testing.T) {
	onCards(t, func(t *testing.T, card simnic.Card) {
		s := newSim(t, simnic.Config{Card: card.Name,
			Function: simnic.Function{Kind: simnic.VF, SpoofCheck: true}}, kernel.Config{})
		d := s.open(t, dv.Config{NIC: dv.NIC{MAC: netdevMAC,
			Steering: dv.Steering{AllowNetdevMAC: true}}})
		if n := d.Caps().MinInline; (n == 18) != (card.Caps.MinInline == simnic.InlineL2) {
			t.Errorf("%d bytes of each frame inline", n)
		}
		exchange(t, s, d, d.Tx(0))
	})
}

// Every kind of frame leaves every card as it was given: copied, tagged and in place, in
// descriptors for one or for several, and cut by the card.
func TestCardSends(t *testing.T) {
	onCards(t, func(t *testing.T, card simnic.Card) {
		s := newSim(t, simnic.Config{Card: card.Name}, kernel.Config{})
		d := s.open(t, dv.Config{})
		for class, f := range flows(3) {
			for _, payload := range []int{0, 18, 60, 200, 1350} {
				b := packet(f.Src, f.Dst, f.Proto, payload)
				copy(b, peerMAC)
				s.sendEveryWay(t, d, class, b)
			}
		}
		for range 20 {
			want := sendMixed(t, d, 50)
			got := s.wire.drain()
			if len(got) != len(want) {
				t.Fatalf("%d of %d frames on the wire", len(got), len(want))
			}
			for i := range want {
				if !bytes.Equal(got[i], want[i]) {
					t.Fatalf("frame %d differs", i)
				}
			}
			d.Tx(0).Reclaim()
		}
		s.sendSegmented(t, d)
		if st := d.Stats().Tx[0]; st.Resets != 0 || (st.MultiPacket > 0) != card.Caps.EnhancedMPW {
			t.Errorf("stats %+v", st)
		}
	})
}

// sendSegmented has the card cut a packet into ten.
func (s *sim) sendSegmented(t *testing.T, d *dv.Device) {
	t.Helper()
	f := flows(1)["TCP over IPv4"]
	b := packet(f.Src, f.Dst, 6, 10*1000)
	copy(b, peerMAC)
	if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{b}, HdrLen: len(b) - 10*1000,
		MSS: 1000}); err != nil {
		t.Fatal(err)
	}
	d.Tx(0).Flush()
	d.Tx(0).Reclaim()
	var payload []byte
	for _, g := range s.wire.drain() {
		payload = append(payload, g[len(b)-10*1000:]...)
	}
	if !bytes.Equal(payload, b[len(b)-10*1000:]) {
		t.Errorf("%d bytes of payload of %d arrive", len(payload), 10*1000)
	}
}

// Frames come from every card as they were sent, in each kind of ring, over many passes, and again
// after the ring was in error. Completions are compressed if the card knows the format.
func TestCardReceives(t *testing.T) {
	onCards(t, func(t *testing.T, card simnic.Card) {
		for _, ring := range []struct {
			name   string
			cfg    dv.Config
			format simnic.MiniFormat
		}{
			{"default", dv.Config{}, simnic.MiniHash},
			{"uncompressed", dv.Config{Tuning: dv.Tuning{NoCompression: true}}, 31},
			{"several buffers", dv.Config{NIC: dv.NIC{MTU: 9000}}, simnic.MiniHash},
			{"striding", dv.Config{NIC: dv.NIC{Rings: dv.Rings{Striding: true}}},
				simnic.MiniChecksumStride},
		} {
			t.Run(ring.name, func(t *testing.T) {
				nic := simnic.Config{Card: card.Name, MTU: ring.cfg.MTU}
				st := wrapsAfterError(t, nic, ring.cfg)
				knows := card.Caps.MiniFormats>>ring.format&1 != 0
				if n := st.Rx[0].Compressed; (n > 0) != knows {
					t.Errorf("%d frames in compressed completions, the card knows them: %v", n,
						knows)
				}
			})
		}
	})
}
