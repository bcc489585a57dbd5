package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// wire segments of a WQE: ctrl and Ethernet, then any others.
func ctrl(op byte, ds int) []byte {
	return append([]byte{0, 0, 0, op, 0, 0, 0, byte(ds)}, 0, 0, 0, 8, 0, 0, 0, 0)
}

func ethSeg(csum byte, mss, word uint16) []byte {
	b := make([]byte, 16)
	b[4] = csum
	binary.BigEndian.PutUint16(b[6:], mss)
	binary.BigEndian.PutUint16(b[12:], word)
	return b
}

func concat(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// legacy is a legacy multi-packet WQE: n segments, each a packet of mss bytes.
func legacy(mss uint16, n int, segment func(r *sendRig) []byte) func(r *sendRig) []byte {
	return func(r *sendRig) []byte {
		w := concat(ctrl(0x0e, 2+n), ethSeg(0, mss, 0))
		for range n {
			w = append(w, segment(r)...)
		}
		w[0] = 1
		return w
	}
}

// Each segment of such a WQE is a packet.
func TestLegacyMultiPacket(t *testing.T) {
	r := newSendRig(t, Config{}, 0)
	copy(r.buf, dump(`ffffffff ffff0200 00000001 88b50102`))
	r.sq.post(legacy(100, 5, func(r *sendRig) []byte { return seg(100, r.key.Key(), r.addr) })(r))
	r.sq.doorbell()
	got := r.wire.drain()
	if len(got) != 5 {
		t.Fatalf("%d packets of 5", len(got))
	}
	for _, f := range got {
		expect(t, "packet", f.Data, r.buf[:100])
	}
	if c := r.nic.Counters(); c.SendWQEs != 1 || c.LSOWQEs != 0 {
		t.Errorf("%d WQEs, of which %d to be segmented", c.SendWQEs, c.LSOWQEs)
	}
}

// TestSendValidation lists the mistakes that an SQ refuses, one per row.
func TestSendValidation(t *testing.T) {
	inline := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, 1<<31|uint32(n)) }
	tcpHeader54 := dump(
		`02000000 00020200 00000001 08004500 00280000 40004006 00000a00 00010a00 0002 9c400050 00000001 00000002 5010ffff 00000000`)
	lso := func(mss uint16, hdr []byte, tail ...[]byte) []byte {
		e := append(ethSeg(0xc0, mss, uint16(len(hdr)))[:14], hdr...)
		for (len(e)+16)%16 != 0 {
			e = append(e, 0)
		}
		w := concat(append([][]byte{ctrl(0x0e, 0), e}, tail...)...)
		w[7] = byte(len(w) / 16)
		return w
	}
	inlined := func(h []byte) []byte {
		e := append(ethSeg(0, 0, uint16(len(h)))[:14], h...)
		return append(e, make([]byte, -len(e)&15)...)
	}
	rest := func(n int) func(r *sendRig) []byte {
		return func(r *sendRig) []byte { return seg(60-n, r.key.Key(), r.addr+uint64(n)) }
	}
	type row struct {
		name     string
		wqe      func(r *sendRig) []byte
		raw      bool // index and queue number stay as they are
		cfg      Config
		caps     func(*Caps)
		syndrome byte
		vendor   byte
		eats     bool // takes all posted blocks for one WQE
	}
	ok := func(r *sendRig) []byte { return seg(60, r.key.Key(), r.addr) }
	with := func(op byte, ds int, e []byte, more ...func(r *sendRig) []byte) func(*sendRig) []byte {
		return func(r *sendRig) []byte {
			w := concat(ctrl(op, ds), e)
			for _, m := range more {
				w = append(w, m(r)...)
			}
			return w
		}
	}
	fixed := func(b []byte) func(*sendRig) []byte { return func(*sendRig) []byte { return b } }
	rows := []row{
		{name: "good", wqe: with(0x0a, 3, ethSeg(0, 0, 0), ok)},
		{name: "wrong index", wqe: func(r *sendRig) []byte {
			w := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), ok(r))
			binary.BigEndian.PutUint32(w[4:], r.sq.Number()<<8|3)
			w[2] = 9
			return w
		}, raw: true, syndrome: 2, vendor: 0x68},
		{name: "wrong queue number", wqe: func(r *sendRig) []byte {
			w := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), ok(r))
			binary.BigEndian.PutUint32(w[4:], (r.sq.Number()+1)<<8|3)
			return w
		}, raw: true, syndrome: 2, vendor: 0x68},
		{name: "RDMA write", wqe: with(0x08, 3, ethSeg(0, 0, 0), ok), syndrome: 2, vendor: 0x71},
		{name: "unknown opcode", wqe: with(0x3f, 3, ethSeg(0, 0, 0), ok), syndrome: 2,
			vendor: 0x71},
		{name: "NOP of 0 DS", wqe: fixed(ctrl(0, 0)), syndrome: 2, vendor: 0x6e},
		{name: "SEND of 2 DS", wqe: with(0x0a, 2, ethSeg(0, 0, 0)), syndrome: 2, vendor: 0x6e},
		{name: "more blocks than posted", wqe: with(0x0a, 9, ethSeg(0, 0, 0), ok), syndrome: 2,
			vendor: 0x6e, eats: true},
		{name: "longer than the device takes", caps: func(c *Caps) { c.MaxSendWQE = 128 },
			wqe: func(r *sendRig) []byte {
				w := concat(ctrl(0x0a, 9), ethSeg(0, 0, 0))
				for range 7 {
					w = append(w, ok(r)...)
				}
				return w
			}, syndrome: 2, vendor: 0x6e},
		{name: "inline header past the WQE", wqe: with(0x0a, 3, ethSeg(0, 0, 60), ok), syndrome: 2,
			vendor: 0x6f},
		{name: "inline segment past the WQE",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				fixed(append(inline(60), make([]byte, 12)...))),
			syndrome: 2, vendor: 0x6f},
		{name: "too little inlined", caps: func(c *Caps) { c.MinInline = InlineL2 },
			wqe: with(0x0a, 3, ethSeg(0, 0, 0), ok), syndrome: 2, vendor: 0x68},
		{name: "IP header not inlined", caps: func(c *Caps) { c.MinInline = InlineIP },
			wqe: with(0x0a, 4, inlined(frame60[:18]), rest(18)), syndrome: 2, vendor: 0x68},
		{name: "IP header inlined", caps: func(c *Caps) { c.MinInline = InlineIP },
			wqe: with(0x0a, 5, inlined(frame60[:34]), rest(34))},
		{name: "UDP header not inlined", caps: func(c *Caps) { c.MinInline = InlineL4 },
			wqe: with(0x0a, 6, inlined(frame60[:41]), rest(41)), syndrome: 2, vendor: 0x68},
		{name: "UDP header inlined", caps: func(c *Caps) { c.MinInline = InlineL4 },
			wqe: with(0x0a, 6, inlined(frame60[:42]), rest(42))},
		{name: "too little inlined, lenient", cfg: Config{Lenient: true},
			caps: func(c *Caps) { c.MinInline = InlineL2 },
			wqe:  with(0x0a, 3, ethSeg(0, 0, 0), ok)},
		{name: "13 bytes",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(13, r.key.Key(), r.addr) }),
			cfg: Config{Lenient: true}, syndrome: 1, vendor: 0x69},
		{name: "18 bytes",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(18, r.key.Key(), r.addr) }), syndrome: 1,
			vendor: 0x69},
		{name: "18 bytes, lenient", cfg: Config{Lenient: true},
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(18, r.key.Key(), r.addr) })},
		{name: "64 KiB",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(65536, r.key.Key(), r.addr) }), syndrome: 1,
			vendor: 0x69},
		{name: "pointer of 0 bytes",
			wqe: with(0x0a, 4, ethSeg(0, 0, 0), ok,
				func(r *sendRig) []byte { return seg(0, r.key.Key(), r.addr) }), syndrome: 1,
			vendor: 0x69},
		{name: "unknown key",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(60, r.key.Key()^0x100, r.addr) }), syndrome: 4,
			vendor: 0x53},
		{name: "other variant of the key",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(60, r.key.Key()^1, r.addr) }), syndrome: 4,
			vendor: 0x53},
		{name: "key of another domain",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0), func(r *sendRig) []byte {
				k, err := r.nic.CreateMKey(
					MKeyAttr{PD: 2, Start: r.addr, Len: 100, Mem: r.key.Attr().Mem})
				if err != nil {
					panic(err)
				}
				return seg(60, k.Key(), r.addr)
			}), syndrome: 4, vendor: 0x52},
		{name: "before the region",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(60, r.key.Key(), r.addr-1) }), syndrome: 4,
			vendor: 0x54},
		{name: "past the region",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte {
					return seg(60, r.key.Key(), r.addr+uint64(len(r.buf))-59)
				}), syndrome: 4, vendor: 0x54},
		{name: "address overflow",
			wqe: with(0x0a, 3, ethSeg(0, 0, 0),
				func(r *sendRig) []byte { return seg(60, r.key.Key(), 1<<64-10) }), syndrome: 4,
			vendor: 0x54},
		{name: "LSO without mss",
			wqe: func(r *sendRig) []byte {
				return lso(0, tcpHeader54, seg(100, r.key.Key(), r.addr))
			}, syndrome: 2, vendor: 0x68},
		{name: "LSO without the TCP header",
			wqe: func(r *sendRig) []byte {
				return lso(1000, tcpHeader54[:40], seg(100, r.key.Key(), r.addr))
			}, syndrome: 2, vendor: 0x68},
		{name: "LSO of too much", caps: func(c *Caps) { c.MaxLSO = 100 },
			wqe: func(r *sendRig) []byte {
				return lso(1000, tcpHeader54, seg(100, r.key.Key(), r.addr))
			}, syndrome: 1, vendor: 0x69},
		{name: "LSO, key unknown",
			wqe: func(r *sendRig) []byte {
				return lso(1000, tcpHeader54, seg(100, 0x1200, r.addr))
			}, syndrome: 4, vendor: 0x53},
		{name: "legacy multi-packet", wqe: legacy(60, 2, ok)},
		{name: "legacy multi-packet, headers wanted inline",
			caps: func(c *Caps) { c.MinInline = InlineL2 }, wqe: legacy(60, 2, ok)},
		{name: "legacy multi-packet without the capability",
			caps: func(c *Caps) { c.LegacyMPW = false }, wqe: legacy(60, 2, ok),
			syndrome: 2, vendor: 0x71},
		{name: "legacy multi-packet without a length", wqe: legacy(0, 2, ok), syndrome: 2,
			vendor: 0x68},
		{name: "legacy multi-packet of another length", wqe: legacy(61, 2, ok), syndrome: 2,
			vendor: 0x68},
		{name: "legacy multi-packet of seven", wqe: legacy(60, 7, ok), syndrome: 2, vendor: 0x68},
		{name: "legacy multi-packet, key unknown",
			wqe:      legacy(60, 1, func(r *sendRig) []byte { return seg(60, 0x1200, r.addr) }),
			syndrome: 4, vendor: 0x53},
		{name: "multi-packet with inline header",
			wqe: with(0x29, 4, append(ethSeg(0, 0, 18), make([]byte, 16)...), ok), syndrome: 2,
			vendor: 0x68},
		{name: "multi-packet with tag", caps: func(c *Caps) { c.VLANInsert = true },
			wqe: with(0x29, 3, ethSeg(0, 0, 0x8000), ok), syndrome: 2, vendor: 0x68},
		{name: "multi-packet without the capability", caps: func(c *Caps) { c.EnhancedMPW = false },
			wqe: with(0x29, 3, ethSeg(0, 0, 0), ok), syndrome: 2, vendor: 0x68},
		{name: "tag without the capability", caps: func(c *Caps) { c.VLANInsert = false },
			wqe:      with(0x0a, 3, ethSeg(0, 0, 0x8000), ok),
			syndrome: 2, vendor: 0x68},
		{name: "immediate on SEND", wqe: func(r *sendRig) []byte {
			w := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), ok(r))
			w[15] = 1
			return w
		}},
		{name: "immediate on SEND, refused", cfg: Config{RefuseImmediate: true},
			wqe: func(r *sendRig) []byte {
				w := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), ok(r))
				w[15] = 1
				return w
			}, syndrome: 4, vendor: 0x52},
		{name: "signature is ignored", wqe: func(r *sendRig) []byte {
			w := concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), ok(r))
			w[8] = 0x5a
			return w
		}},
	}
	for _, tc := range rows {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Caps = DefaultCaps()
			if tc.caps != nil {
				tc.caps(&tc.cfg.Caps)
			}
			r := newSendRig(t, tc.cfg, 0)
			copy(r.buf, frame60)
			w := tc.wqe(r)
			if tc.raw {
				r.sq.postRaw(w)
			} else {
				r.sq.post(w)
			}
			r.sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), ok(r)))
			r.sq.doorbell()
			e := r.cq.mustPoll(t)
			if tc.syndrome == 0 {
				if e[0x3f]>>4 != 0 {
					t.Fatalf("completion %x", e)
				}
				return
			}
			if e[0x3f] != 0xd2 || e[0x37] != tc.syndrome || e[0x36] != tc.vendor {
				t.Errorf("completion %#02x syndrome %#02x vendor %#02x, want %#02x %#02x", e[0x3f],
					e[0x37], e[0x36], tc.syndrome, tc.vendor)
			}
			if n := len(r.wire.drain()); n != 0 {
				t.Errorf("%d frames sent", n)
			}
			if r.sq.State() != StateError {
				t.Errorf("state %v", r.sq.State())
			}
			if e := r.cq.poll(); !tc.eats && (e == nil || e[0x37] != 5) {
				t.Errorf("the next WQE was not flushed: %x", e)
			}
		})
	}
}

func TestUDPChecksumZero(t *testing.T) {
	f := flowFrame(1, 60)
	p := frame.Parse(f)
	// now the sum is 0xffff
	binary.BigEndian.PutUint16(f[58:], frame.AddSums(be16(f[58:]), be16(f[40:])))
	p.SeedChecksum(f)
	r := newSendRig(t, Config{}, 0)
	copy(r.buf, f)
	r.sq.post(concat(ctrl(0x0a, 3), ethSeg(0xc0, 0, 0), seg(60, r.key.Key(), r.addr)))
	r.sq.doorbell()
	if got := r.wire.drain()[0].Data; be16(got[40:]) != 0xffff {
		t.Errorf("checksum %#04x, want ffff for 0", be16(got[40:]))
	}
}

func TestDoorbellChecks(t *testing.T) {
	tests := []struct {
		name string
		ring func(r *sendRig)
		want int // violations
	}{
		{"right", func(r *sendRig) { r.sq.doorbell() }, 0},
		{"again without new work", func(r *sendRig) { r.sq.doorbell(); r.sq.doorbell() }, 0},
		{"upper half of the record",
			func(r *sendRig) {
				r.sq.rec.StoreBE32(4, 0x70000|uint32(r.sq.pc))
				r.sq.Doorbell(r.sq.last)
			}, 0},
		{"not the last WQE",
			func(r *sendRig) { r.sq.post(ctrl(0, 1)); r.sq.last -= 1 << 40; r.sq.doorbell() }, 1},
		{"not what the ring has", func(r *sendRig) { r.sq.last |= 1 << 63; r.sq.doorbell() }, 1},
		{"reserved bits", func(r *sendRig) { r.sq.ring.Bytes()[9] = 1; r.sq.doorbell() }, 1},
		{"another queue", func(r *sendRig) { r.sq.Doorbell(r.sq.last ^ 1<<8) }, 1},
		{"more than the ring",
			func(r *sendRig) { r.sq.rec.StoreBE32(4, 33); r.sq.Doorbell(r.sq.last) }, 2},
		{"page without the queue", func(r *sendRig) { r.nic.UARWrite(1, 0x800, r.sq.last) }, 1},
		{"no such queue", func(r *sendRig) { r.nic.UARWrite(0, 0xa00, 0x0000000100000001) }, 1},
		{"register", func(r *sendRig) {
			r.sq.rec.StoreBE32(4, 1)
			r.nic.UARWrite(0, 0xb00, r.sq.last)
		}, 0},
		{"rest of a BlueFlame copy",
			func(r *sendRig) { r.nic.UARWrite(0, 0x808, 0xffffffffffffffff) }, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newSendRig(t, Config{}, 0)
			r.sq.post(ctrl(0, 1))
			tc.ring(r)
			if v := r.nic.Violations(); len(v) != tc.want {
				t.Errorf("%d violations, want %d: %q", len(v), tc.want, v)
			}
			if c := r.nic.Counters(); c.Violations != uint64(tc.want) {
				t.Errorf("counted %d", c.Violations)
			}
		})
	}
}

func TestSendRingWraps(t *testing.T) {
	r := newSendRig(t, Config{}, 0)
	rnd := testRand(t)
	copy(r.buf, frame60)
	sent := 0
	for sent < 70000 { // more than 65536 basic blocks
		n := 1 + rnd.IntN(12)
		for range n {
			ds := 3 + rnd.IntN(6)
			w := concat(ctrl(0x0a, ds), ethSeg(0, 0, 0), seg(60, r.key.Key(), r.addr))
			for len(w) < ds*16 {
				// empty inline segments
				w = append(w, append([]byte{0x80, 0, 0, 0}, make([]byte, 12)...)...)
			}
			if int(r.sq.pc-r.sq.hwCI)+2 > 32 {
				break
			}
			r.sq.post(w)
			sent++
		}
		r.sq.doorbell()
		for r.cq.poll() != nil {
		}
		r.wire.drain()
	}
	clean(t, r.nic)
	if c := r.nic.Counters(); c.SendWQEs != uint64(sent) || c.Wire.TxPackets != uint64(sent) {
		t.Errorf("%d sent, counters %+v", sent, c)
	}
}
