package dv

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// strideRig is a striding queue and the NIC's side of it: slab and stride that
// the next frame goes to.
type strideRig struct {
	*rxRig
	at uint16
}

const rigSlabs = 4

func newStrideRig(t testing.TB, slabs int) *strideRig {
	pool := newPool(memory(t, slabs*slabSize), 0x12a4, slabSize, slabs)
	pool.makeShared()
	const completions = rigSlabs * strides
	cqMem, rec, cqRec := memory(t, completions*64), memory(t, 8), memory(t, 8)
	r := &strideRig{rxRig: &rxRig{pool: pool, rec: rec, cqRec: cqRec}}
	r.q = newStridingRxQueue(0, rigSlabs, memory(t, rigSlabs*32), rec,
		newCompRing(cqMem, cqRec, completions), pool)
	r.q.cq.compressed = true
	r.nic = fakeCQ{buf: cqMem.Slice(0, completions*64), size: completions}
	r.q.queueControl = queueControl{
		halt:      func() error { r.halts++; return nil },
		start:     func() error { r.starts++; r.next, r.at = 0, 0; return nil },
		fail:      func(err error) { r.failure = err; r.q.signals.raiseBits(signalFailed) },
		wakeAfter: func(wakeReason, time.Duration) {},
		ended:     func() error { return ErrFailed },
	}
	r.q.Refill()
	return r
}

// strided is the completion of n strides at stride at of descriptor wqe.
func strided(wqe, at uint16, n, length int) *[64]byte {
	c := receive(at, n<<16|length)
	binary.BigEndian.PutUint16(c[2:], wqe)
	return c
}

// where returns the memory of the next frame, as the descriptor says.
func (r *strideRig) where() []byte {
	slot := uint32(r.next) & r.q.mask
	d := r.q.ring[slot*32 : slot*32+32]
	addr := binary.BigEndian.Uint64(d[24:])
	if binary.BigEndian.Uint64(d) != 0 || binary.BigEndian.Uint64(d[8:]) != 0 ||
		binary.BigEndian.Uint32(d[16:]) != slabSize || binary.BigEndian.Uint32(d[20:]) != 0x12a4 {
		panic("bad descriptor")
	}
	return r.pool.buf[addr-r.pool.mem.Addr()+uint64(r.at)*256:]
}

// consume moves on by n strides.
func (r *strideRig) consume(n int) {
	if r.at += uint16(n); r.at == strides {
		r.at = 0
		r.next++
	}
}

// deliver lets the NIC receive a frame of length bytes, marked with id, if it has room. It
// returns the completion, after that of a filler if one was needed.
func (r *strideRig) deliver(id uint32, length int, put func(*[64]byte)) bool {
	n := (length + 255) / 256
	if r.posted() == r.next {
		return false
	}
	if rest := strides - int(r.at); rest < n {
		c := strided(r.next, r.at, rest, 0)
		c[0x2c] |= 0x80
		r.nic.put(c)
		if r.consume(rest); r.posted() == r.next {
			return false
		}
	}
	binary.BigEndian.PutUint32(r.where(), id)
	put(strided(r.next, r.at, n, length))
	r.consume(n)
	return true
}

// deliverCompressed is deliver for a CQE block of up to n frames, all in one slab.
func (r *strideRig) deliverCompressed(id uint32, n int, size func(id uint32) int) (taken int) {
	var title *[64]byte
	var minis [][8]byte
	for taken < n && r.posted() != r.next && (size(id)+255)/256 <= strides-int(r.at) {
		wqe := r.next
		r.deliver(id, size(id), func(c *[64]byte) {
			if title == nil {
				title = c
			}
			m := [8]byte{0xbe, byte(id), c[0x3c], c[0x3d]}
			copy(m[4:], c[0x2c:0x30])
			minis = append(minis, m)
		})
		id++
		if taken++; r.next != wqe {
			break
		}
	}
	if len(minis) == 1 {
		m := minis[0]
		copy(title[0x2c:], m[4:])
		r.nic.put(title)
	} else if len(minis) > 1 {
		r.nic.compress(title, minis)
	}
	return taken
}

// Frames of all sizes, single and compressed, fillers between them, polled and
// given back in odd portions and any order, with counters about to wrap:
// each is delivered once, in order, in memory that nobody else has, and every slab comes
// back.
func TestStridingConservation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 9))
	for _, start := range []uint32{0, 1<<16 - 3, 1<<32 - 3} {
		r := newStrideRig(t, rigSlabs+3)
		frames := []Frame{}
		for i := r.q.cc; i != r.q.pc; i++ {
			frames = append(frames, r.q.slots[i&r.q.mask])
		}
		r.q.cc, r.q.pc, r.q.posted, r.next = start, start, start, uint16(start)
		for _, f := range frames {
			r.q.giveBuffer(f)
		}
		r.q.publishBuffers()
		r.q.cq.ci, r.nic.pi = start<<9, start<<9
		for at := 63; at < len(r.nic.buf); at += 64 {
			r.nic.buf[at] = 0xf0
		}
		r.exercise(t, rng, 30000)
	}
}

func (r *strideRig) exercise(t *testing.T, rng *rand.Rand, total int) {
	t.Helper()
	size := func(id uint32) int { return 14 + int(id*id%1505) }
	in, out := uint32(0), uint32(0)
	pkts, held := make([]Packet, 100), []Packet(nil)
	for round := 0; out < uint32(total); round++ {
		if round > total {
			t.Fatalf("%d of %d frames delivered", out, in)
		}
		for range rng.IntN(5) {
			if rng.IntN(2) == 0 {
				in += uint32(r.deliverCompressed(in, 1+rng.IntN(64), size))
			} else if r.deliver(in, size(in), r.nic.put) {
				in++
			}
		}
		n := r.q.Poll(pkts[:rng.IntN(len(pkts))])
		for _, p := range pkts[:n] {
			if id := binary.BigEndian.Uint32(p.Data); id != out || len(p.Data) != size(id) ||
				p.Flags != RxIPv4|RxTCP|RxL3OK|RxL4OK && p.Flags&RxHash == 0 {
				t.Fatalf("frame %d of %d bytes, flags %b, where %d was due", id,
					len(p.Data), p.Flags, out)
			}
			out++
		}
		held = append(held, pkts[:n]...)
		for _, p := range held {
			if id := binary.BigEndian.Uint32(p.Data); len(p.Data) != size(id) || id >= in {
				t.Fatal("a frame that is held was overwritten")
			}
		}
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		back := min(len(held), rng.IntN(300))
		r.q.Release(held[:back])
		held = slices.Delete(held, 0, back)
	}
	r.q.Release(held)
	r.checkShares(t)
	if s := r.q.Stats(); s.Packets != uint64(out) || s.Resets != 0 || s.Compressed == 0 ||
		s.Compressed == s.Packets {
		t.Errorf("delivered %d, counted %+v", out, s)
	}
}

// checkShares fails unless every slab is in the ring or in the pool, once, with no
// holder but the ring.
func (r *strideRig) checkShares(t *testing.T) {
	t.Helper()
	r.q.Refill()
	owners := make([]int, r.pool.count)
	for i := r.q.cc; i != r.q.pc; i++ {
		f := r.q.slots[i&r.q.mask]
		owners[f]++
		if i != r.q.cc && r.pool.shares[f].Load() != 1 {
			t.Fatalf("slab %d in the ring has %d holders", f, r.pool.shares[f].Load())
		}
	}
	for _, f := range r.pool.free {
		owners[f]++
	}
	for f, n := range owners {
		if n != 1 {
			t.Fatalf("slab %d has %d owners", f, n)
		}
	}
}

// Completions that cannot be reset the queue; slabs with frames that callers
// hold are not given to the NIC before these are back.
func TestStridingMisuse(t *testing.T) {
	for _, c := range []struct {
		name string
		cqe  *[64]byte
		want RxDrops
	}{
		{"another slab", strided(1, 3, 1, 60), RxDrops{Malformed: 1}},
		{"stride skipped", strided(0, 4, 1, 60), RxDrops{Malformed: 1}},
		{"stride again", strided(0, 2, 1, 60), RxDrops{Malformed: 1}},
		{"no strides", strided(0, 3, 0, 60), RxDrops{Malformed: 1}},
		{"more strides than there are", strided(0, 3, strides-2, 60), RxDrops{Malformed: 1}},
		{"longer than its strides", strided(0, 3, 1, 257), RxDrops{Malformed: 1}},
		{"shorter than a header", strided(0, 3, 1, 13), RxDrops{Malformed: 1}},
		{"session longer than the slab",
			compressed(strided(0, 3, 0, strides-2)), RxDrops{Malformed: 1}},
		{"send done", sent(3), RxDrops{Malformed: 1}},
		{"protection error", failed(0xe0, 0x04, 0), RxDrops{Error: 1}},
		{"flushed", failed(0xe0, 0x05, 0), RxDrops{Flushed: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newStrideRig(t, rigSlabs+2)
			for i := range 3 {
				r.deliver(uint32(i), 60, r.nic.put)
			}
			r.nic.put(c.cqe)
			pkts := make([]Packet, 16)
			if n := r.q.Poll(pkts); n != 3 {
				t.Fatalf("%d frames before the bad one, want 3", n)
			}
			if s := r.q.Stats(); s.Drops != c.want || s.Resets != 1 {
				t.Fatalf("drops %+v resets %d", s.Drops, s.Resets)
			}
			slab := pkts[0].Frame
			for i := r.q.cc; i != r.q.pc; i++ {
				if r.q.slots[i&r.q.mask] == slab {
					t.Fatal("the NIC has a slab that callers still read")
				}
			}
			r.q.Release(pkts[:3])
			r.q.count = rxCounts{}
			r.nic.pi = r.q.cq.ci
			r.exercise(t, rand.New(rand.NewPCG(1, 1)), 3000)
		})
	}
	t.Run("frame given back twice", func(t *testing.T) {
		r := newStrideRig(t, rigSlabs)
		r.deliver(0, 60, r.nic.put)
		pkts := make([]Packet, 2)
		r.q.Poll(pkts[:1])
		pkts[1] = pkts[0]
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		r.q.Release(pkts)
		r.q.Release([]Packet{{Frame: 0}, {Frame: 1}, {Frame: 2}, {Frame: 3}})
	})
}

func TestStridingAllocations(t *testing.T) {
	r := newStrideRig(t, rigSlabs+1)
	pkts := make([]Packet, 64)
	c := strided(0, 0, 6, 1500)
	if n := testing.AllocsPerRun(200, func() {
		for range 40 {
			if int(r.at)+6 > strides {
				binary.BigEndian.PutUint32(c[0x2c:], 1<<31|uint32(strides-r.at)<<16)
				binary.BigEndian.PutUint16(c[2:], r.next)
				binary.BigEndian.PutUint16(c[0x3c:], r.at)
				r.nic.put(c)
				r.consume(strides - int(r.at))
				binary.BigEndian.PutUint32(c[0x2c:], 6<<16|1500)
			}
			binary.BigEndian.PutUint16(c[2:], r.next)
			binary.BigEndian.PutUint16(c[0x3c:], r.at)
			r.nic.put(c)
			r.consume(6)
		}
		if n := r.q.Poll(pkts); n != 40 {
			t.Fatalf("%d packets", n)
		}
		r.q.Release(pkts[:40])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The NIC writes whatever it likes into the completions of a striding ring.
func FuzzStridingCompletions(f *testing.F) {
	add := func(build func(r *strideRig)) {
		r := newStrideRig(f, rigSlabs)
		build(r)
		f.Add(slices.Clone(r.nic.buf[:r.nic.pi*64]))
	}
	add(func(r *strideRig) {
		r.deliverCompressed(0, 40,
			func(id uint32) int { return 60 + int(id) })
	})
	add(func(r *strideRig) { r.deliver(0, 1514, r.nic.put); r.deliver(1, 60, r.nic.put) })
	f.Add(strided(0, 0, strides, 1500)[:])
	f.Add(append(failed(0xe0, 0x04, 0)[:], compressed(strided(0, 0, 0, 9))[:]...))
	r := newStrideRig(f, rigSlabs+1)
	f.Fuzz(func(t *testing.T, stream []byte) {
		r.survive(t, stream, func() {})
		r.checkShares(t)
	})
}
