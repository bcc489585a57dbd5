package dv

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// frame60 is the 60-byte UDP frame of the descriptor vectors.
const frame60 = "020000000002020000000001" + "0800" +
	"4500002e1234400040111489" + "0a0000010a000002" + "03e807d0001a97ae" +
	"000102030405060708090a0b0c0d0e0f1011"

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// at starts the rig's counters at block count pc with a ring full of poison.
func (r *txRig) at(pc uint32) *txRig {
	q := r.q
	q.pc, q.cc, q.rung, q.asked, q.last = pc, pc, pc, pc, pc
	r.rec.StoreBE32(4, pc&0xffff)
	for i := range r.ring {
		r.ring[i] = 0xa5
	}
	for i := range q.scratch {
		q.scratch[i] = 0xa5
	}
	return r
}

// wqe is n bytes of the ring from block count pc on, put together over its end.
func (r *txRig) wqe(pc uint32, n int) []byte {
	at := int(pc&r.q.mask) * 64
	got := bytes.Clone(r.ring[at:min(at+n, len(r.ring))])
	return append(got, r.ring[:n-len(got)]...)
}

// post sends one packet and returns the record's counter.
func (r *txRig) post(t *testing.T, p *TxPacket) uint16 {
	t.Helper()
	if err := r.q.Post(p); err != nil {
		t.Fatal(err)
	}
	r.q.Flush()
	return uint16(r.rec.LoadBE32(4))
}

// Golden descriptors, compared as they stand in the ring, in their slots.
func TestTxRingBytes(t *testing.T) {
	frame := unhex(t, frame60)
	long := append(bytes.Clone(frame), make([]byte, 100)...) // 160 bytes: staged
	inline18 := defaultLimits
	inline18.minInline = 18
	for _, c := range []struct {
		name   string
		limits txLimits
		pc     uint32
		p      TxPacket
		want   string // STAGE stands for the address of staging memory, STAGE12 for 18 bytes on
		blocks uint16
	}{
		{"short frame, all inline", defaultLimits, 13, TxPacket{Bufs: [][]byte{frame}},
			"00000d0a 00012306 00000008 00000000 00000000 00000000 00000000 003c0200" +
				"00000002 02000000 00010800 4500002e 12344000 40111489 0a000001 0a000002" +
				"03e807d0 001a97ae 00010203 04050607 08090a0b 0c0d0e0f 10110000 00000000", 2},
		{"runt is padded", defaultLimits, 0,
			TxPacket{Bufs: [][]byte{frame[:9], frame[9:14]}, Flags: TxL3Csum},
			"0000000a 00012306 00000008 00000000 00000000 40000000 00000000 003c0200" +
				"00000002 02000000 00010800" + strings.Repeat("00", 52), 2},
		{"pointer, no inline", defaultLimits, 5, TxPacket{Bufs: [][]byte{long[:100], long[100:]},
			Flags: TxL3Csum | TxL4Csum},
			"0000050a 00012303 00000008 00000000 00000000 c0000000 00000000 00000000" +
				"000000a0 000012a4 STAGE", 1},
		{"pointer, 18 bytes inline", inline18, 5, TxPacket{Bufs: [][]byte{long}, Flags: TxL4Csum},
			"0000050a 00012304 00000008 00000000 00000000 80000000 00000000 00120200" +
				"00000002 02000000 00010800 4500002e 0000008e 000012a4 STAGE12", 1},
		{"tag in an inline frame", defaultLimits, 1, TxPacket{Bufs: [][]byte{frame[:5], frame[5:]},
			Flags: TxVLAN, VLAN: 0x6064},
			"0000010a 00012306 00000008 00000000 00000000 00000000 00000000 00400200" +
				"00000002 02000000 00018100 60640800 4500002e 12344000 40111489 0a000001 0a000002" +
				"03e807d0 001a97ae 00010203 04050607 08090a0b 0c0d0e0f 1011 0000", 2},
		{"index wraps inside the descriptor", defaultLimits, 0xffff,
			TxPacket{Bufs: [][]byte{frame}},
			"00ffff0a 00012306 00000008 00000000 00000000 00000000 00000000 003c0200" +
				"00000002 02000000 00010800 4500002e 12344000 40111489 0a000001 0a000002" +
				"03e807d0 001a97ae 00010203 04050607 08090a0b 0c0d0e0f 10110000 00000000", 2},
		{"one segment is sent plainly", defaultLimits, 0,
			TxPacket{Bufs: [][]byte{frame}, HdrLen: 54, MSS: 1460},
			"0000000a 00012306 00000008 00000000 00000000 c0000000 00000000 003c0200", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTxRig(t, 64, 128<<10, c.limits).at(c.pc)
			rung := r.post(t, &c.p)
			stage := func(n uint64) string { return fmt.Sprintf("%016x", r.stage.Addr()+n) }
			text := strings.NewReplacer("STAGE12", stage(18), "STAGE", stage(0)).Replace(c.want)
			want := unhex(t, text)
			if got := r.wqe(c.pc, len(want)); !bytes.Equal(got, want) {
				t.Errorf("descriptor\n%x\nwant\n%x", got, want)
			}
			if want := uint16(c.pc) + c.blocks; rung != want {
				t.Errorf("record says %d, want %d", rung, want)
			}
			if len(r.bells) != 1 || r.bells[0] != binary.BigEndian.Uint64(want) {
				t.Errorf("doorbells %x, want the first 8 bytes of the descriptor", r.bells)
			}
		})
	}
}

// The LSO vector: 54 bytes of header, 4000 of payload in two buffers, as one
// pointer into staging memory.
func TestTxLSOBytes(t *testing.T) {
	header := unhex(t,
		"020000000002 020000000001 0800 45000fc8 10004000 40060000 0a000001 0a000002"+
			"9c400050 10000000 20000000 5019ffff 00000000")
	payload := make([]byte, 4000)
	for i := range payload {
		payload[i] = byte(7*i + 3)
	}
	for _, split := range []int{54, 20, 300} { // where the first buffer ends
		r := newTxRig(t, 64, 128<<10, defaultLimits).at(63)
		all := append(bytes.Clone(header), payload...)
		rung := r.post(t, &TxPacket{Bufs: [][]byte{all[:split], all[split:1000], all[1000:]},
			HdrLen: 54, MSS: 1460})
		want := unhex(t, "00003f0e 00012307 00000008 00000000 00000000 c00005b4 00000000 00360200"+
			"00000002 02000000 00010800 45000fc8 10004000 40060000 0a000001 0a000002"+
			"9c400050 10000000 20000000 5019ffff 00000000 00000000 00000000 00000000"+
			fmt.Sprintf("00000fa0 000012a4 %016x", r.stage.Addr()))
		want[7] = 7 // ctrl, 5 of headers, one pointer
		if got := r.wqe(63, len(want)); !bytes.Equal(got, want) {
			t.Errorf("split at %d: descriptor\n%x\nwant\n%x", split, got, want)
		}
		if !bytes.Equal(r.q.stage.buf[:4000], payload) {
			t.Errorf("split at %d: payload differs", split)
		}
		if rung != 65 {
			t.Errorf("record says %d, want 65", rung)
		}
	}
}

// 80 bytes to be sent in datagrams of 30: one descriptor for the NIC to cut up, with the lengths of
// one datagram in its header, and one for the last 20 bytes.
func TestTxDatagramBytes(t *testing.T) {
	payload := make([]byte, 80)
	for i := range payload {
		payload[i] = byte(7*i + 3)
	}
	const eth = "020000000002 020000000001 "
	for name, c := range map[string]struct {
		header string // of all 80 bytes
		whole  string // and the two descriptors, that they begin with
		last   string
	}{
		"IPv4": {eth + "0800 4500006c 00004000 4011beef 0a000001 0a000002 9c400035 0058beef",
			"00003f0e 00012306 00000000 00000000 00000000 c000001e 00000000 002a" +
				eth + "0800 4500003a 00004000 4011beef 0a000001 0a000002 9c400035 0026beef" +
				"0000000000000000",
			"0000410a 00012306 00000008 00000000 00000000 c0000000 00000000 003e" +
				eth + "0800 45000030 00004000 4011beef 0a000001 0a000002 9c400035 001cbeef"},
		"IPv6": {eth + "86dd 60000000 0058 1140 fd000000000000000000000000000001" +
			"fd000000000000000000000000000002 9c400035 0058beef",
			"00003f0e 00012307 00000000 00000000 00000000 c000001e 00000000 003e" +
				eth + "86dd 60000000 0026 1140 fd000000000000000000000000000001" +
				"fd000000000000000000000000000002 9c400035 0026beef 00000000",
			"0000410a 00012307 00000008 00000000 00000000 c0000000 00000000 0052" +
				eth + "86dd 60000000 001c 1140 fd000000000000000000000000000001" +
				"fd000000000000000000000000000002 9c400035 001cbeef"},
	} {
		header := unhex(t, c.header)
		for _, split := range []int{10, len(header), len(header) + 60, len(header) + 65} {
			r := newTxRig(t, 64, 128<<10, defaultLimits).at(63)
			all := append(bytes.Clone(header), payload...)
			sent := bytes.Clone(all)
			rung := r.post(t, &TxPacket{Bufs: [][]byte{all[:split], all[split:]},
				HdrLen: len(header), MSS: 30, UDP: true})
			want := append(unhex(t, c.whole), unhex(t, fmt.Sprintf("0000003c 000012a4 %016x",
				r.stage.Addr()))...)
			if got := r.wqe(63, len(want)); !bytes.Equal(got, want) {
				t.Errorf("%s, split at %d: descriptor\n%x\nwant\n%x", name, split, got, want)
			}
			if !bytes.Equal(r.q.stage.buf[:60], payload[:60]) {
				t.Errorf("%s, split at %d: payload differs", name, split)
			}
			want = append(unhex(t, c.last), payload[60:]...)
			want = append(want, make([]byte, -len(want)&15)...)
			if got := r.wqe(65, len(want)); !bytes.Equal(got, want) {
				t.Errorf("%s, split at %d: descriptor of the last\n%x\nwant\n%x", name, split, got,
					want)
			}
			if rung != 67 || !bytes.Equal(all, sent) {
				t.Errorf("record says %d, want 67; or the packet was changed", rung)
			}
			if s := r.q.Stats(); s.Packets != 1 || s.Bytes != uint64(2*len(header)+80) {
				t.Errorf("%+v", s)
			}
		}
	}
}

// What does not fit as a whole is not posted in part: neither for want of blocks nor of staging
// memory.
func TestTxDatagramsAreAllOrNothing(t *testing.T) {
	header := unhex(t, "020000000002 020000000001 0800 4500006c 00004000 40110000 0a000001 "+
		"0a000002 9c400035 00580000")
	packet := func(n, mss int) *TxPacket {
		return &TxPacket{Bufs: [][]byte{header, make([]byte, n)}, HdrLen: 42, MSS: mss, UDP: true}
	}
	for name, c := range map[string]struct {
		p            *TxPacket
		blocks       uint32 // that it takes
		stage, spare uint32 // memory that is in use, and that suffices
	}{
		"blocks":                       {packet(80, 30), 4, 0, 0},
		"blocks, nothing left over":    {packet(90, 30), 2, 0, 0},
		"blocks of a lone whole one":   {packet(1500, 1400), 2, 0, 0},
		"memory":                       {packet(1<<16-100, 1400), 3, 1<<16 + 64, 1 << 14},
		"memory of the one left over":  {packet(3*1400+1000, 1400), 3, 1<<17 - 4224, 1<<17 - 8192},
		"memory of a lone and another": {packet(1400+1000, 1400), 2, 1<<17 - 1500, 1<<17 - 4096},
	} {
		r := newTxRig(t, 64, 128<<10, defaultLimits).at(0)
		r.q.pc = 64 - c.blocks + 1
		if c.stage > 0 {
			r.q.pc, r.q.stage.head = 1, c.stage
		}
		pc, stage := r.q.pc, r.q.stage.head
		if err := r.q.Post(c.p); !errors.Is(err, ErrRingFull) {
			t.Errorf("%s: %v", name, err)
		}
		if r.q.pc != pc || r.q.stage.head != stage || r.q.count.packets.n != 0 {
			t.Errorf("%s: %d blocks written, stage %d", name, r.q.pc-pc, r.q.stage.head)
		}
		r.q.pc, r.q.stage.head = 64-c.blocks, c.spare
		if err := r.q.Post(c.p); err != nil || r.q.pc != 64 {
			t.Errorf("%s: %v, %d blocks", name, err, r.q.pc)
		}
	}
}

// One doorbell per flush, for the last descriptor; a completion for the last
// one of a batch and for one per quarter of the ring, and for no other.
func TestTxSelectiveCompletions(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	for range 40 {
		if err := r.q.Post(&p); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.bells) != 0 || r.rec.LoadBE32(4) != 0 {
		t.Error("the NIC was told before Flush")
	}
	r.q.Flush()
	r.q.Flush()
	if len(r.bells) != 1 || r.bells[0] != 0x0000270a00012303 {
		t.Errorf("doorbells %x, want one for descriptor 39", r.bells)
	}
	for i := range 40 {
		want := byte(0)
		if i == 15 || i == 31 || i == 39 {
			want = 8
		}
		if got := r.ring[i*64+11]; got != want {
			t.Errorf("descriptor %d asks %#x, want %#x", i, got, want)
		}
	}
	r.nic.put(sent(31))
	if n := r.q.Reclaim(); n != 32 || r.q.Free() != 56 {
		t.Errorf("completion of 31 freed %d packets, %d blocks are free", n, r.q.Free())
	}
	r.nic.put(sent(39))
	if n := r.q.Reclaim(); n != 8 || r.q.Free() != 64 || r.q.stage.head != r.q.stage.tail {
		t.Errorf("completion of 39 freed %d packets, %d blocks are free", n, r.q.Free())
	}
	if ci := r.cqRec.LoadBE32(0); ci != 2 {
		t.Errorf("consumer index %d, want 2", ci)
	}
	if s := r.q.Stats(); s.Packets != 40 || s.Doorbells != 1 ||
		s.Completions != 2 || s.Inline != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestTxRefusals(t *testing.T) {
	noTSO := defaultLimits
	noTSO.tso = 0
	buf := make([]byte, 200<<10)
	for _, c := range []struct {
		name   string
		limits txLimits
		p      TxPacket
		want   error
	}{
		{"empty", defaultLimits, TxPacket{}, ErrFrameSize},
		{"13 bytes", defaultLimits, TxPacket{Bufs: [][]byte{buf[:13]}}, ErrFrameSize},
		{"longer than the port takes", defaultLimits,
			TxPacket{Bufs: [][]byte{buf[:1519]}}, ErrFrameSize},
		{"longer with its tag", defaultLimits, TxPacket{Bufs: [][]byte{buf[:1515]}, Flags: TxVLAN},
			ErrFrameSize},
		{"segmentation without", noTSO, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 54, MSS: 1460},
			ErrNotSupported},
		{"payload beyond the device", defaultLimits, TxPacket{Bufs: [][]byte{buf[:64<<10+55]},
			HdrLen: 54, MSS: 1460}, ErrFrameSize},
		{"segments beyond the port", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 54,
			MSS: 1465}, ErrFrameSize},
		{"header too short", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 53,
			MSS: 1460}, ErrFrameSize},
		{"header too long", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 257,
			MSS: 1000}, ErrFrameSize},
		{"datagrams without", noTSO, TxPacket{Bufs: [][]byte{ipv4Bytes(9000)}, HdrLen: 42,
			MSS: 1460, UDP: true}, ErrNotSupported},
		{"datagrams beyond the device", defaultLimits, TxPacket{Bufs: [][]byte{ipv4Bytes(
			64<<10 + 43)}, HdrLen: 42, MSS: 1460, UDP: true}, ErrFrameSize},
		{"datagrams beyond the port", defaultLimits, TxPacket{Bufs: [][]byte{ipv4Bytes(9000)},
			HdrLen: 42, MSS: 1477, UDP: true}, ErrFrameSize},
		{"header of datagrams too short", defaultLimits, TxPacket{Bufs: [][]byte{ipv4Bytes(9000)},
			HdrLen: 41, MSS: 1000, UDP: true}, ErrFrameSize},
		{"header of datagrams too long", defaultLimits, TxPacket{Bufs: [][]byte{ipv4Bytes(9000)},
			HdrLen: 83, MSS: 1000, UDP: true}, ErrFrameSize},
		{"datagrams that are not IP", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]},
			HdrLen: 42, MSS: 1000, UDP: true}, ErrNotSupported},
		{"header longer than the packet", defaultLimits,
			TxPacket{Bufs: [][]byte{buf[:20]}, HdrLen: 54, MSS: 1460}, nil},
	} {
		r := newTxRig(t, 64, 128<<10, c.limits).at(0)
		if err := r.q.Post(&c.p); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if c.want != nil && (r.q.pc != 0 || r.ring[0] != 0xa5 || r.q.stage.head != 0 ||
			r.q.Stats().Drops.Refused != 1) {
			t.Errorf("%s: a refused packet left traces", c.name)
		}
	}
}

// ipv4Bytes is a frame of n bytes that begins as one of IPv4 does.
func ipv4Bytes(n int) []byte {
	b := make([]byte, n)
	b[ethHeader] = 0x45
	return b
}

func TestPostFrameRefusals(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	for _, c := range []struct {
		name   string
		f      Frame
		off, n int
		flags  TxFlags
		want   error
	}{
		{"no frame", NoFrame, 0, 60, 0, ErrFrameSize},
		{"frame outside the pool", 64, 0, 60, 0, ErrFrameSize},
		{"negative offset", 0, -1, 60, 0, ErrFrameSize},
		{"end outside the frame", 0, 2000, 60, 0, ErrFrameSize},
		{"padding outside the frame", 0, 2020, 20, 0, ErrFrameSize},
		{"too long", 0, 0, 1519, 0, ErrFrameSize},
		{"too short", 0, 0, 13, 0, ErrFrameSize},
		{"tag", 0, 0, 60, TxVLAN, ErrNotSupported},
	} {
		if err := r.q.PostFrame(c.f, c.off, c.n, c.flags); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if r.q.pc != 0 {
		t.Error("a refused frame was posted")
	}
}

// No kind of packet allocates on any of the ways it can go: in the descriptor or
// from memory, in a descriptor of its own or a shared one, cut by the NIC, tagged,
// in one piece or several, lent, and with the doorbell.
func TestTxAllocations(t *testing.T) {
	type limits = txLimits
	for _, c := range []struct {
		name      string
		limits    limits
		blueFlame uint32
		want      TxStats // of each round, for what must have been used
	}{
		{"own descriptors", limits{frame: 1518, tso: 64 << 10, lsoHeader: 256}, 0,
			TxStats{Packets: 30, Inline: 12, LSO: 6, ZeroCopy: 6}},
		{"headers inline", limits{frame: 1518, tso: 64 << 10, lsoHeader: 256, minInline: 18}, 0,
			TxStats{Packets: 30, Inline: 12, LSO: 6, ZeroCopy: 6}},
		{"shared descriptors", limits{frame: 1518, tso: 64 << 10, lsoHeader: 256, mpw: 60}, 0,
			TxStats{Packets: 30, Inline: 12, LSO: 6, ZeroCopy: 6, MultiPacket: 24}},
		{"with the doorbell", limits{frame: 1518, tso: 64 << 10, lsoHeader: 256, mpw: 60}, 256,
			TxStats{Packets: 30, Inline: 12, LSO: 6, ZeroCopy: 6, MultiPacket: 24, BlueFlames: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTxRig(t, 256, 512<<10, c.limits)
			r.q.blueFlame.size = c.blueFlame
			short, mid, long := [1][]byte{make([]byte, 60)},
				[3][]byte{make([]byte, 54), make([]byte, 700), make([]byte, 1)},
				[2][]byte{make([]byte, 54), make([]byte, 20000)}
			small := TxPacket{Bufs: short[:], Flags: TxL3Csum | TxL4Csum}
			tagged := TxPacket{Bufs: short[:], Flags: TxVLAN, VLAN: VLANTag(5, 7)}
			staged := TxPacket{Bufs: mid[:], Flags: TxL4Csum}
			lso := TxPacket{Bufs: long[:], HdrLen: 54, MSS: 1460}
			datagrams := TxPacket{Bufs: [][]byte{ipv4Bytes(42), make([]byte, 20100)}, HdrLen: 42,
				MSS: 1000, UDP: true}
			done := sent(0)
			end := func(packets int) {
				r.q.Flush()
				binary.BigEndian.PutUint16(done[0x3c:], uint16(r.q.last))
				r.nic.put(done)
				if n := r.q.Reclaim(); n != packets {
					t.Fatalf("%d of %d done", n, packets)
				}
				r.bells = r.bells[:0]
			}
			const rounds = 200
			if n := testing.AllocsPerRun(rounds, func() {
				for range 6 {
					for _, p := range []*TxPacket{&small, &tagged, &staged, &lso} {
						if err := r.q.Post(p); err != nil {
							t.Fatal(err)
						}
					}
					f, _ := r.pool.Get()
					if err := r.q.PostFrame(f, 0, 1000, 0); err != nil {
						t.Fatal(err)
					}
				}
				end(30)
			}); n != 0 {
				t.Errorf("%v allocations in a round of Post, PostFrame, Flush and Reclaim", n)
			}
			if n := testing.AllocsPerRun(rounds, func() {
				if err := r.q.Post(&small); err != nil {
					t.Fatal(err)
				}
				end(1)
			}); n != 0 {
				t.Errorf("%v allocations with a lone packet", n)
			}
			s := r.q.Stats()
			if n := testing.AllocsPerRun(rounds, func() {
				if err := r.q.Post(&datagrams); err != nil {
					t.Fatal(err)
				}
				end(1)
			}); n != 0 {
				t.Errorf("%v allocations with datagrams", n)
			}
			for _, n := range []struct{ got, want uint64 }{
				{s.Packets, c.want.Packets}, {s.Inline, c.want.Inline}, {s.LSO, c.want.LSO},
				{s.ZeroCopy, c.want.ZeroCopy}, {s.MultiPacket, c.want.MultiPacket},
				{s.BlueFlames, c.want.BlueFlames},
			} {
				if n.want == 0 && n.got != 0 || n.got < n.want*rounds/2 {
					t.Errorf("measured the wrong thing: %+v", s)
					break
				}
			}
		})
	}
}

// Also a full ring, which is normal under load, costs nothing.
func TestTxFullAllocations(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	for r.q.Post(&p) == nil {
	}
	if n := testing.AllocsPerRun(100, func() {
		if !errors.Is(r.q.Post(&p), ErrRingFull) {
			t.Fatal("room")
		}
	}); n != 0 {
		t.Errorf("%v allocations in a refused Post", n)
	}
}
