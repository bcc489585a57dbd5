package dv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// Any mix of packets, in any portions, over many passes: every packet reaches
// the NIC once, whole and in order, whatever wraps meanwhile.
func TestTxConservation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 4))
	for _, blocks := range []int{64, 256} {
		for _, pc := range []uint32{0, 1<<16 - 30, 1<<32 - 50} {
			for _, c := range []struct {
				inline, full int
				multi        uint32
			}{{0, 0, 0}, {18, 0, 0}, {58, 0, 0}, {78, 0, 0}, {0, 0, 60},
				{0, 900, 60}, {0, 60, 20}} {
				t.Run(fmt.Sprintf("%d blocks from %#x inline %d to %d multi %d", blocks, pc,
					c.inline, c.full, c.multi), func(t *testing.T) {
					limits := defaultLimits
					limits.minInline, limits.inline, limits.mpw = c.inline, c.full, c.multi
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
	sentWant  []wanted
	posted    int
}

// wanted is a packet that was posted: its bytes and, unless it is to be
// segmented, the checksums it asked for.
type wanted struct {
	bytes []byte
	flags TxFlags
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
	if len(e.sentWant) != 0 || e.q.cc != e.q.pc || e.q.stage.head != e.q.stage.tail ||
		e.pool.Free() != e.pool.Frames() {
		t.Errorf("%d packets never came, cc %d pc %d, %d of %d frames in the pool", len(e.sentWant),
			e.q.cc, e.q.pc, e.pool.Free(), e.pool.Frames())
	}
	if s := e.q.Stats(); s.Packets != uint64(e.posted) || s.Resets != 0 || s.Drops != (TxDrops{}) {
		t.Errorf("posted %d, stats %+v", e.posted, s)
	}
}

// postOne posts a packet of random kind; a full ring is no error.
func (e *txExercise) postOne(t *testing.T) {
	t.Helper()
	flags := []TxFlags{0, 0, 0, TxL4Csum}[e.rng.IntN(4)]
	n := []int{14 + e.rng.IntN(100), 14 + e.rng.IntN(1505), 54 + e.rng.IntN(30<<10)}[e.rng.IntN(3)]
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + e.posted)
	}
	var err error
	if n <= 1518 && e.rng.IntN(4) == 0 {
		err = e.postZeroCopy(b, flags)
	} else {
		p := TxPacket{Bufs: split(e.rng, b), Flags: flags}
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
	e.sentWant = append(e.sentWant, wanted{b, flags})
}

func (e *txExercise) postZeroCopy(b []byte, flags TxFlags) error {
	f, ok := e.pool.Get()
	if !ok {
		return ErrRingFull
	}
	off := e.rng.IntN(64)
	copy(e.pool.Bytes(f)[off:], b)
	err := e.q.PostFrame(f, off, len(b), flags)
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
		if w[3] == 0x29 {
			e.fetchMulti(t, w)
		} else {
			e.got(t, w, e.payload(t, w))
		}
		e.hw += uint32((ds + 3) / 4)
	}
}

// got compares a packet that descriptor w sends with the one that was posted.
func (e *txExercise) got(t *testing.T, w, packet []byte) {
	t.Helper()
	if len(e.sentWant) == 0 || !bytes.Equal(packet, e.sentWant[0].bytes) {
		t.Fatalf("descriptor at %#x has another packet than was posted", e.hw)
	}
	if want := csumBits(e.sentWant[0].flags); w[3] != 0x0e && w[20] != want {
		t.Fatalf("descriptor at %#x asks for checksums %#x, want %#x", e.hw, w[20], want)
	}
	e.sentWant = e.sentWant[1:]
}

// fetchMulti reads the packets of a multi-packet descriptor.
func (e *txExercise) fetchMulti(t *testing.T, w []byte) {
	t.Helper()
	if limit := int(e.q.limits.mpw); len(w) > 16*limit || len(w) <= 32 {
		t.Fatalf("multi-packet descriptor of %d bytes, the limit is %d units", len(w), limit)
	}
	if rest := binary.BigEndian.Uint64(w[16:]) &^ (0xff << 24); rest != 0 ||
		binary.BigEndian.Uint64(w[24:]) != 0 {
		t.Fatalf("Ethernet segment %x", w[16:32])
	}
	for at := 32; at < len(w); {
		n := int(binary.BigEndian.Uint32(w[at:]))
		if n>>31 == 0 {
			e.got(t, w, e.pointed(t, w[at:]))
			at += 16
			continue
		}
		n &= 0x3ff
		end := at + (4+n+15)/16*16
		e.got(t, w, w[at+4:at+4+n])
		if bytes.Count(w[at+4+n:end], []byte{0}) != end-(at+4+n) {
			t.Fatalf("padding %x", w[at+4+n:end])
		}
		at = end
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
		packet = append(packet, e.pointed(t, w[at:])...)
	}
	return packet
}

// pointed is the bytes that a data segment points to.
func (e *txExercise) pointed(t *testing.T, b []byte) []byte {
	t.Helper()
	n, lkey, addr := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]),
		binary.BigEndian.Uint64(b[8:])
	switch {
	case n == 0:
		t.Fatal("pointer to 0 bytes")
	case lkey == testLKey:
		return e.stage.Slice(int(addr-e.stage.Addr()), int(n))
	case lkey == 0x7700:
		return e.pool.mem.Slice(int(addr-e.pool.mem.Addr()), int(n))
	default:
		t.Fatalf("lkey %#x", lkey)
	}
	return nil
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
