package dv

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
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
		{"runt is padded", defaultLimits, 0, TxPacket{Bufs: [][]byte{frame[:9], frame[9:14]}, Flags: TxL3Csum},
			"0000000a 00012306 00000008 00000000 00000000 40000000 00000000 003c0200" +
				"00000002 02000000 00010800" + strings.Repeat("00", 52), 2},
		{"pointer, no inline", defaultLimits, 5, TxPacket{Bufs: [][]byte{long[:100], long[100:]}, Flags: TxL3Csum | TxL4Csum},
			"0000050a 00012303 00000008 00000000 00000000 c0000000 00000000 00000000" +
				"000000a0 000012a4 STAGE", 1},
		{"pointer, 18 bytes inline", inline18, 5, TxPacket{Bufs: [][]byte{long}, Flags: TxL4Csum},
			"0000050a 00012304 00000008 00000000 00000000 80000000 00000000 00120200" +
				"00000002 02000000 00010800 4500002e 0000008e 000012a4 STAGE12", 1},
		{"tag in an inline frame", defaultLimits, 1, TxPacket{Bufs: [][]byte{frame[:5], frame[5:]}, Flags: TxVLAN, VLAN: 0x6064},
			"0000010a 00012306 00000008 00000000 00000000 00000000 00000000 00400200" +
				"00000002 02000000 00018100 60640800 4500002e 12344000 40111489 0a000001 0a000002" +
				"03e807d0 001a97ae 00010203 04050607 08090a0b 0c0d0e0f 1011 0000", 2},
		{"index wraps inside the descriptor", defaultLimits, 0xffff, TxPacket{Bufs: [][]byte{frame}},
			"00ffff0a 00012306 00000008 00000000 00000000 00000000 00000000 003c0200" +
				"00000002 02000000 00010800 4500002e 12344000 40111489 0a000001 0a000002" +
				"03e807d0 001a97ae 00010203 04050607 08090a0b 0c0d0e0f 10110000 00000000", 2},
		{"one segment is sent plainly", defaultLimits, 0, TxPacket{Bufs: [][]byte{frame}, HdrLen: 54, MSS: 1460},
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
	header := unhex(t, "020000000002 020000000001 0800 45000fc8 10004000 40060000 0a000001 0a000002"+
		"9c400050 10000000 20000000 5019ffff 00000000")
	payload := make([]byte, 4000)
	for i := range payload {
		payload[i] = byte(7*i + 3)
	}
	for _, split := range []int{54, 20, 300} { // where the first buffer ends
		r := newTxRig(t, 64, 128<<10, defaultLimits).at(63)
		all := append(bytes.Clone(header), payload...)
		rung := r.post(t, &TxPacket{Bufs: [][]byte{all[:split], all[split:1000], all[1000:]}, HdrLen: 54, MSS: 1460})
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
	if s := r.q.Stats(); s.Packets != 40 || s.Doorbells != 1 || s.Completions != 2 || s.Inline != 0 {
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
		{"longer than the port takes", defaultLimits, TxPacket{Bufs: [][]byte{buf[:1519]}}, ErrFrameSize},
		{"longer with its tag", defaultLimits, TxPacket{Bufs: [][]byte{buf[:1515]}, Flags: TxVLAN}, ErrFrameSize},
		{"segmentation without", noTSO, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 54, MSS: 1460}, ErrNotSupported},
		{"payload beyond the device", defaultLimits, TxPacket{Bufs: [][]byte{buf[:64<<10+55]}, HdrLen: 54, MSS: 1460}, ErrFrameSize},
		{"segments beyond the port", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 54, MSS: 1465}, ErrFrameSize},
		{"header too short", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 53, MSS: 1460}, ErrFrameSize},
		{"header too long", defaultLimits, TxPacket{Bufs: [][]byte{buf[:9000]}, HdrLen: 257, MSS: 1000}, ErrFrameSize},
		{"header longer than the packet", defaultLimits, TxPacket{Bufs: [][]byte{buf[:20]}, HdrLen: 54, MSS: 1460}, nil},
	} {
		r := newTxRig(t, 64, 128<<10, c.limits).at(0)
		if err := r.q.Post(&c.p); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if c.want != nil && (r.q.pc != 0 || r.ring[0] != 0xa5 || r.q.stage.head != 0 || r.q.Stats().Drops.Refused != 1) {
			t.Errorf("%s: a refused packet left traces", c.name)
		}
	}
}

// Any mix of packets, in any portions, over many passes: every packet reaches
// the NIC once, whole and in order, whatever wraps meanwhile.
func TestTxConservation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 4))
	for _, blocks := range []int{64, 256} {
		for _, pc := range []uint32{0, 1<<16 - 30, 1<<32 - 50} {
			for _, inline := range []int{0, 18, 58, 78} {
				t.Run(fmt.Sprintf("%d blocks from %#x inline %d", blocks, pc, inline), func(t *testing.T) {
					limits := defaultLimits
					limits.minInline = inline
					r := newTxRig(t, blocks, 128<<10, limits).at(pc)
					r.q.cq.ci, r.nic.pi = 1<<24-9, 1<<24-9
					for at := 63; at < len(r.nic.buf); at += 64 {
						r.nic.buf[at] = 0xf0
					}
					r.q.stage.head, r.q.stage.tail = 1<<32-64<<10, 1<<32-64<<10
					newTxExercise(r, rng, pc).run(t, 20*blocks)
				})
			}
		}
	}
}

// txExercise plays both sides: it posts random packets, and reads them back
// out of the ring as the NIC would.
type txExercise struct {
	*txRig
	rng       *rand.Rand
	hw        uint32   // block count the NIC has got to
	completed []uint16 // descriptors that asked for a completion, not yet written
	sentWant  [][]byte
	posted    int
}

func newTxExercise(r *txRig, rng *rand.Rand, pc uint32) *txExercise {
	return &txExercise{txRig: r, rng: rng, hw: pc}
}

func (e *txExercise) run(t *testing.T, total int) {
	t.Helper()
	for e.posted < total {
		for range e.rng.IntN(12) {
			e.postOne(t)
		}
		if e.rng.IntN(3) > 0 {
			e.q.Flush()
		}
		e.fetch(t)
		if e.rng.IntN(2) == 0 {
			e.complete()
		}
		e.q.Reclaim()
	}
	e.q.Flush()
	e.fetch(t)
	e.complete()
	e.q.Reclaim()
	if len(e.sentWant) != 0 || e.q.cc != e.q.pc || e.q.stage.head != e.q.stage.tail || e.pool.Free() != e.pool.Frames() {
		t.Errorf("%d packets never came, cc %d pc %d, %d of %d frames in the pool", len(e.sentWant), e.q.cc, e.q.pc, e.pool.Free(), e.pool.Frames())
	}
	if s := e.q.Stats(); s.Packets != uint64(e.posted) || s.Resets != 0 || s.Drops != (TxDrops{}) {
		t.Errorf("posted %d, stats %+v", e.posted, s)
	}
}

// postOne posts a packet of random kind; a full ring is no error.
func (e *txExercise) postOne(t *testing.T) {
	t.Helper()
	n := []int{14 + e.rng.IntN(100), 14 + e.rng.IntN(1505), 54 + e.rng.IntN(30<<10)}[e.rng.IntN(3)]
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + e.posted)
	}
	var err error
	if n <= 1518 && e.rng.IntN(4) == 0 {
		err = e.postZeroCopy(b)
	} else {
		p := TxPacket{Bufs: split(e.rng, b)}
		if n > 1514 {
			p.HdrLen, p.MSS = 54, 1460
		}
		err = e.q.Post(&p)
	}
	if errors.Is(err, ErrRingFull) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if n < 60 {
		b = append(b, make([]byte, 60-n)...)
	}
	e.posted++
	e.sentWant = append(e.sentWant, b)
}

func (e *txExercise) postZeroCopy(b []byte) error {
	f, ok := e.pool.Get()
	if !ok {
		return ErrRingFull
	}
	off := e.rng.IntN(64)
	copy(e.pool.Bytes(f)[off:], b)
	err := e.q.PostFrame(f, off, len(b), 0)
	if err != nil {
		e.pool.Put(f)
	}
	return err
}

// split cuts b in up to four pieces, empty ones among them.
func split(rng *rand.Rand, b []byte) [][]byte {
	var bufs [][]byte
	for range rng.IntN(4) {
		n := rng.IntN(len(b) + 1)
		bufs = append(bufs, b[:n])
		b = b[n:]
	}
	return append(bufs, b)
}

// fetch reads, as the NIC, every descriptor up to the doorbell record.
func (e *txExercise) fetch(t *testing.T) {
	t.Helper()
	for uint16(e.hw) != uint16(e.rec.LoadBE32(4)) {
		head := e.wqe(e.hw, 8)
		if index := binary.BigEndian.Uint16(head[1:]); index != uint16(e.hw) {
			t.Fatalf("descriptor at %#x says index %#x", uint16(e.hw), index)
		}
		ds := int(head[7])
		w := e.wqe(e.hw, ds*16)
		if imm := binary.BigEndian.Uint32(w[12:]); imm != 0 {
			t.Fatalf("immediate %#x", imm)
		}
		if w[11] == 8 {
			e.completed = append(e.completed, uint16(e.hw))
		}
		if got := e.payload(t, w); len(e.sentWant) == 0 || !bytes.Equal(got, e.sentWant[0]) {
			t.Fatalf("descriptor at %#x has another packet than was posted", e.hw)
		}
		e.sentWant = e.sentWant[1:]
		e.hw += uint32((ds + 3) / 4)
	}
}

// payload puts together the packet of descriptor w.
func (e *txExercise) payload(t *testing.T, w []byte) []byte {
	inline := int(binary.BigEndian.Uint16(w[28:]))
	packet := bytes.Clone(w[30 : 30+inline])
	at := 32
	if inline > 2 {
		at = 16 + (14+inline+15)/16*16
	}
	if want := e.q.limits.minInline; at < len(w) && w[3] == 0x0a && inline < want {
		t.Fatalf("%d bytes inline and a pointer, the device wants %d inline", inline, want)
	}
	for ; at < len(w); at += 16 {
		n, lkey, addr := binary.BigEndian.Uint32(w[at:]), binary.BigEndian.Uint32(w[at+4:]), binary.BigEndian.Uint64(w[at+8:])
		switch {
		case n == 0:
			t.Fatal("pointer to 0 bytes")
		case lkey == testLKey:
			packet = append(packet, e.stage.Slice(int(addr-e.stage.Addr()), int(n))...)
		case lkey == 0x7700:
			packet = append(packet, e.pool.mem.Slice(int(addr-e.pool.mem.Addr()), int(n))...)
		default:
			t.Fatalf("lkey %#x", lkey)
		}
	}
	return packet
}

// complete writes the completions that were asked for, often only the last.
func (e *txExercise) complete() {
	for i, index := range e.completed {
		if i == len(e.completed)-1 || e.rng.IntN(2) == 0 {
			e.nic.put(sent(index))
		}
	}
	e.completed = e.completed[:0]
}

// Whatever the NIC reports but success, the queue is replaced, frames come
// back, the loss is counted, and sending goes on.
func TestTxRecovery(t *testing.T) {
	for _, c := range []struct {
		name string
		cqe  *[64]byte
		done uint64 // packets known as sent before it
	}{
		{"protection error", failed(0xd0, 0x04, 4), 0},
		{"malformed descriptor", failed(0xd0, 0x02, 2), 0},
		{"flushed", failed(0xd0, 0x05, 4), 0},
		{"receive error", failed(0xe0, 0x04, 4), 0},
		{"received in a send queue", receive(4, 60), 0},
		{"no descriptor starts there", sent(3), 0},
		{"not posted yet", sent(9), 0},
		{"asked for no completion", sent(0), 0},
		{"compressed", compressed(sent(4)), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTxRig(t, 64, 128<<10, defaultLimits)
			f, _ := r.pool.Get()
			for _, n := range []int{60, 60} { // blocks 0 and 2
				r.q.Post(&TxPacket{Bufs: [][]byte{make([]byte, n)}})
			}
			if err := r.q.PostFrame(f, 0, 500, 0); err != nil { // block 4
				t.Fatal(err)
			}
			r.q.Flush()
			r.nic.put(c.cqe)
			r.q.Reclaim()
			s := r.q.Stats()
			if s.Resets != 1 || s.Drops.Lost != 3-c.done || r.halts != 1 || r.starts != 1 || r.pool.Free() != r.pool.Frames() {
				t.Fatalf("stats %+v, halts %d, %d frames free", s, r.halts, r.pool.Free())
			}
			r.q.count = txCounts{}
			r.q.done = 0
			newTxExercise(r, rand.New(rand.NewPCG(1, 2)), 0).run(t, 300)
		})
	}
}

// Completions of descriptors that asked for one, but not this time round, or
// that the NIC has not been told of yet.
func TestTxCompletionOutOfTurn(t *testing.T) {
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	t.Run("asked in an earlier pass", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		post := func(n int) {
			for range n {
				r.q.Post(&p)
			}
			r.q.Flush()
		}
		post(10) // 9 asks
		post(22) // 25 and 31 ask
		r.nic.put(sent(31))
		r.q.Reclaim()
		post(50)                // 47, 63, 79 and 81 ask
		r.nic.put(sent(64 + 9)) // in the slot of 9
		if r.q.Reclaim() != 0 || r.starts != 1 {
			t.Errorf("taken for true, %d resets", r.starts)
		}
	})
	t.Run("twice", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		r.post(t, &p)
		r.nic.put(sent(0))
		r.nic.put(sent(0))
		if r.q.Reclaim() != 1 || r.starts != 1 {
			t.Errorf("%d resets", r.starts)
		}
	})
	t.Run("not rung", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		for range 16 {
			r.q.Post(&p)
		}
		r.nic.put(sent(15))
		if r.q.Reclaim() != 0 || r.starts != 1 {
			t.Errorf("taken for true, %d resets", r.starts)
		}
	})
}

// A completion ahead of the error in the same batch still counts as sent.
func TestTxRecoveryAfterSuccess(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	for range 5 {
		r.post(t, &p)
	}
	r.nic.put(sent(2))
	r.nic.put(failed(0xd0, 0x04, 3))
	if n := r.q.Reclaim(); n != 3 {
		t.Errorf("%d packets done, want 3", n)
	}
	if s := r.q.Stats(); s.Drops.Lost != 2 {
		t.Errorf("%d lost, want 2", s.Drops.Lost)
	}
}

func TestTxHopeless(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	for range 100 {
		if err := r.q.Post(&p); err != nil {
			if !errors.Is(err, ErrFailed) {
				t.Fatal(err)
			}
			break
		}
		r.q.Flush()
		r.nic.put(failed(0xd0, 0x04, 0))
		r.q.Reclaim()
	}
	if r.failure == nil || r.starts != maxFutile {
		t.Errorf("%d resets, failure %v", r.starts, r.failure)
	}
}

// A full ring that the NIC does not move for long is replaced; one that moves
// is not.
func TestTxStuck(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	now := time.Unix(1000, 0)
	r.q.now = func() time.Time { return now }
	p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
	fill := func() {
		for r.q.Post(&p) == nil {
		}
		r.q.Flush()
	}
	fill()
	now = now.Add(txTimeout - 1)
	fill()
	r.nic.put(sent(15))
	r.q.Reclaim()
	now = now.Add(txTimeout)
	fill()
	fill()
	if r.q.Reclaim(); r.starts != 0 {
		t.Fatal("a queue that moved was replaced")
	}
	now = now.Add(txTimeout + 1)
	fill()
	if r.q.Reclaim(); r.starts != 1 || r.q.Free() != 64 {
		t.Fatalf("%d replacements, %d blocks free", r.starts, r.q.Free())
	}
	if s := r.q.Stats(); s.Stalls == 0 || s.Resets != 1 {
		t.Errorf("stats %+v", s)
	}
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

func TestTxAllocations(t *testing.T) {
	r := newTxRig(t, 256, 256<<10, defaultLimits)
	short, long := [1][]byte{make([]byte, 60)}, [2][]byte{make([]byte, 54), make([]byte, 20000)}
	small := TxPacket{Bufs: short[:], Flags: TxL3Csum | TxL4Csum}
	lso := TxPacket{Bufs: long[:], HdrLen: 54, MSS: 1460}
	if n := testing.AllocsPerRun(500, func() {
		for range 6 {
			if r.q.Post(&small) != nil || r.q.Post(&lso) != nil {
				t.Fatal("ring full")
			}
			f, _ := r.pool.Get()
			if r.q.PostFrame(f, 0, 1000, 0) != nil {
				t.Fatal("ring full")
			}
		}
		r.q.Flush()
		r.nic.put(sent(uint16(r.q.last)))
		if r.q.Reclaim() != 18 {
			t.Fatal("not all done")
		}
	}); n != 0 {
		t.Errorf("%v allocations in a round of Post, PostFrame, Flush and Reclaim", n)
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

// The NIC writes whatever it likes into the completion ring.
func FuzzTxCompletions(f *testing.F) {
	f.Add(sent(0)[:])
	f.Add(append(sent(2)[:], failed(0xd0, 0x04, 4)[:]...))
	f.Add(receive(0, 60)[:])
	f.Add(sent(0xffff)[:])
	r := newTxRig(f, 64, 128<<10, defaultLimits)
	p := TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	f.Fuzz(func(t *testing.T, stream []byte) {
		for len(stream) > 0 {
			var cqe [64]byte
			stream = stream[copy(cqe[:], stream):]
			if f, ok := r.pool.Get(); !ok || r.q.PostFrame(f, 0, 200, 0) != nil {
				t.Fatal("no room: something was not freed")
			}
			if err := r.q.Post(&p); err != nil {
				t.Fatal(err)
			}
			r.q.Flush()
			r.nic.put(&cqe)
			r.q.Reclaim()
			if free := r.q.Free(); free < 0 || free > 64 {
				t.Fatalf("%d blocks free", free)
			}
			r.nic.put(sent(uint16(r.q.last)))
			r.q.Reclaim()
			r.q.Reclaim()
			if r.q.cc != r.q.pc { // the first was taken for something else
				r.q.reset("test")
			}
			r.failure, r.q.futile = nil, 0
			r.q.alarm.bits.Store(0)
		}
		if r.pool.Free() != r.pool.Frames() {
			t.Fatalf("%d of %d frames in the pool", r.pool.Free(), r.pool.Frames())
		}
	})
}
