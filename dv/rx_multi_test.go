package dv

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// segRig is a queue with several buffers per descriptor and the NIC's side of
// it.
type segRig struct{ *rxRig }

const (
	rigSegs    = 4
	rigSegSize = 2368
)

func newSegRig(t testing.TB, entries, frames int) *segRig {
	pool := newPool(memory(t, frames*rigSegSize), 0x12a4, rigSegSize, frames)
	pool.makeChainable()
	cqMem, rec, cqRec := memory(t, entries*64), memory(t, 8), memory(t, 8)
	r := &segRig{&rxRig{pool: pool, rec: rec, cqRec: cqRec}}
	r.q = newMultiSGERxQueue(0, entries, rigSegs, memory(t, entries*16*rigSegs), rec,
		newCompRing(cqMem, cqRec, entries), pool)
	r.nic = fakeCQ{buf: cqMem.Slice(0, entries*64), size: uint32(entries)}
	r.q.queueControl = queueControl{
		halt:      func() error { r.halts++; return nil },
		start:     func() error { r.starts++; r.next = 0; return nil },
		fail:      func(err error) { r.failure = err; r.q.signals.raiseBits(signalFailed) },
		wakeAfter: func(wakeReason, time.Duration) {},
		ended:     func() error { return errors.Join(ErrFailed, r.failure) },
	}
	r.q.page = &uverbs.Page{Trap: func(int, uint64) {}}
	r.q.Refill()
	return r
}

// write puts frame id of n bytes into the descriptor that the NIC takes next: as
// many of its segments as it reaches, in order.
func (r *segRig) write(id uint32, n int) {
	list := r.q.ring[int(uint32(r.next)&r.q.mask)*16*rigSegs:]
	for i := 0; i < n; list = list[16:] {
		size, lkey, addr := int(binary.BigEndian.Uint32(list)), binary.BigEndian.Uint32(list[4:]),
			binary.BigEndian.Uint64(list[8:])
		if lkey != 0x12a4 {
			panic("bad key")
		}
		piece := r.pool.buf[addr-r.pool.mem.Addr():][:min(size, n-i)]
		for j := range piece {
			piece[j] = byte(int(id) + (i+j)*7)
		}
		i += len(piece)
	}
}

// is reports whether p is what write wrote.
func (r *segRig) is(p *Packet, id uint32, n int) bool {
	at, pieces := 0, r.q.Segments(nil, p)
	for _, piece := range pieces {
		for _, b := range piece {
			if b != byte(int(id)+at*7) {
				return false
			}
			at++
		}
	}
	return at == n && p.Size() == n && len(pieces) == (n+rigSegSize-1)/rigSegSize
}

// A descriptor is as many {bytes, lkey, address} as it has buffers; what a short
// frame did not reach is in it again, where it was.
func TestSegmentedRingBytes(t *testing.T) {
	r := newSegRig(t, 64, 300)
	before := slices.Clone(r.q.ring[:64])
	for i, f := range r.q.slots[:rigSegs] {
		want := fmt.Sprintf("00000940000012a4%016x", r.pool.mem.Addr()+uint64(f)*rigSegSize)
		if got := hex.EncodeToString(before[16*i : 16*i+16]); got != want {
			t.Errorf("segment %d: %s, want %s", i, got, want)
		}
	}
	if len(r.q.ring) != 64*64 || r.posted() != 64 {
		t.Errorf("ring of %d bytes, %d descriptors posted", len(r.q.ring), r.posted())
	}
	pkts := make([]Packet, 64)
	r.receive(64, 3000)
	if n := r.q.Poll(pkts); n != 64 || pkts[0].More != 3000-rigSegSize ||
		cap(pkts[0].Data) != rigSegSize {
		t.Fatalf("%d packets, %d and %d bytes", n, len(pkts[0].Data), pkts[0].More)
	}
	r.q.Release(pkts)
	after := r.q.ring[:64]
	if string(after[32:]) != string(before[32:]) {
		t.Errorf("segments that were not reached: %x, were %x", after[32:], before[32:])
	}
	if s := r.q.Stats(); s.Segmented != 64 || s.Bytes != 64*3000 {
		t.Errorf("counted %+v", s)
	}
}

// Frames of all sizes, in completions of their own and compressed ones, polled
// and given back in odd portions and any order, with counters about to wrap:
// each comes once, whole, in buffers that nobody else has.
func TestSegmentedConservation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 11))
	for _, compressed := range []bool{false, true} {
		for _, at := range []struct{ descriptor, completion uint32 }{
			{0, 0}, {1<<16 - 40, 1<<16 - 40}, {7, 1<<24 - 100}, {1<<32 - 70, 1<<32 - 90},
		} {
			t.Run(fmt.Sprintf("compressed %v from %#x and %#x", compressed, at.descriptor,
				at.completion), func(t *testing.T) {
				r := newSegRig(t, 64, 64*rigSegs+31)
				if compressed {
					r.q.cq.compressed = true
				}
				r.startAt(at.descriptor, at.completion)
				r.exercise(t, rng, 2500)
			})
		}
	}
}

// startAt moves the counters of queue and NIC, as if so much had happened.
func (r *segRig) startAt(descriptor, completion uint32) {
	q, l := r.q, r.q.format.(*multiSGE)
	for i := range q.slots { // every buffer goes out, and in again
		r.pool.returnFrames([]Frame{q.slots[i]})
		l.holes[uint32(i)/l.segs] = uint8(l.segs)
		l.missing = uint32(i + 1)
	}
	q.cc, q.pc, q.posted = descriptor, descriptor, descriptor
	q.cq.ci, r.nic.pi, r.next = completion, completion, uint16(descriptor)
	for at := 63; at < len(r.nic.buf); at += 64 {
		r.nic.buf[at] = 0xf0
	}
	q.Refill()
}

func (r *segRig) exercise(t *testing.T, rng *rand.Rand, total int) {
	t.Helper()
	size := func(id uint32) int { return 14 + int(id*id*37%(rigSegs*rigSegSize-13)) }
	in, out, long := uint32(0), uint32(0), uint64(0)
	pkts, held := make([]Packet, 40), []Packet(nil)
	ids := map[Frame]uint32{}
	for round := 0; out < uint32(total); round++ {
		if round > total {
			t.Fatalf("only %d of %d frames delivered", out, in)
		}
		for room := int(r.posted() - r.next); room > 0 &&
			rng.IntN(3) > 0; room = int(r.posted() - r.next) {
			in += r.arrive(in, 1+rng.IntN(min(room, 20)), size)
		}
		n := r.q.Poll(pkts[:rng.IntN(len(pkts))])
		for i := range n {
			if !r.is(&pkts[i], out, size(out)) {
				t.Fatalf("frame of %d bytes is not number %d, of %d",
					pkts[i].Size(), out, size(out))
			}
			if size(out) > rigSegSize {
				long++
			}
			ids[pkts[i].Frame] = out
			out++
		}
		held = append(held, pkts[:n]...)
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		for i := range held {
			if id := ids[held[i].Frame]; !r.is(&held[i], id, size(id)) {
				t.Fatal("a frame that is held was overwritten")
			}
		}
		back := rng.IntN(len(held) + 1)
		r.q.Release(held[:back])
		held = slices.Delete(held, 0, back)
		r.checkOwners(t, held)
	}
	if s := r.q.Stats(); s.Packets != uint64(out) || s.Resets != 0 || s.Segmented != long ||
		long == 0 || (s.Compressed > 0) != r.q.cq.compressed {
		t.Errorf("delivered %d of which %d long, counted %+v", out, long, s)
	}
}

// arrive has the NIC deliver n frames from number id on, in one CQE block where
// completions may be compressed.
func (r *segRig) arrive(id uint32, n int, size func(id uint32) int) uint32 {
	var minis [][8]byte
	first := r.next
	for i := range uint32(n) {
		r.write(id+i, size(id+i))
		if !r.q.cq.compressed || n == 1 {
			r.nic.put(receive(r.next, size(id+i)))
		} else {
			minis = append(minis, miniHash(id+i, size(id+i)))
		}
		r.next++
	}
	if len(minis) > 0 {
		r.nic.compress(receive(first, 0), minis)
	}
	return uint32(n)
}

// checkOwners fails unless every buffer is in exactly one place, and those of
// nobody's are not linked.
func (r *segRig) checkOwners(t *testing.T, held []Packet) {
	t.Helper()
	l, owners := r.q.format.(*multiSGE), make([]int, r.pool.count)
	missing := 0
	for i, f := range r.q.slots {
		if hole := i%rigSegs < int(l.holes[i/rigSegs]); hole {
			missing++
			continue
		}
		owners[f]++
	}
	for _, p := range held {
		for f := p.Frame; f != NoFrame; f = r.pool.next[f] {
			owners[f]++
		}
	}
	for _, f := range r.pool.free {
		owners[f]++
		if r.pool.next[f] != NoFrame {
			t.Fatalf("free buffer %d is linked to %d", f, r.pool.next[f])
		}
	}
	for f, n := range owners {
		if n != 1 {
			t.Fatalf("buffer %d has %d owners", f, n)
		}
	}
	if missing != int(l.missing) {
		t.Fatalf("%d buffers missing, counted %d", missing, l.missing)
	}
}

// Completions that cannot be: a frame too long is dropped and its buffers stay,
// the rest resets the queue, which then works again.
func TestSegmentedMisuse(t *testing.T) {
	good := miniHash(1, 60)
	for _, c := range []struct {
		name  string
		put   func(r *segRig)
		reset bool
		want  RxDrops
	}{
		{"longer than the list", func(r *segRig) { r.nic.put(failed(0xe0, 0x01, 1)) },
			false, RxDrops{TooLong: 1}},
		{"said to be longer than the list",
			func(r *segRig) { r.nic.put(receive(1, rigSegs*rigSegSize+1)) },
			true, RxDrops{Malformed: 1}},
		{"shorter than a header", func(r *segRig) { r.nic.put(receive(1, 13)) },
			false, RxDrops{Malformed: 1}},
		{"another descriptor", func(r *segRig) { r.nic.put(receive(2, 60)) },
			true, RxDrops{Malformed: 1}},
		{"protection error", func(r *segRig) { r.nic.put(failed(0xe0, 0x04, 1)) }, true,
			RxDrops{Error: 1}},
		{"flushed", func(r *segRig) { r.nic.put(failed(0xe0, 0x05, 1)) },
			true, RxDrops{Flushed: 1}},
		{"too long in a session", func(r *segRig) {
			r.nic.compress(receive(1, 0), [][8]byte{good, miniHash(1, rigSegs*rigSegSize+1)})
		}, true, RxDrops{Malformed: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newSegRig(t, 64, 64*rigSegs+9)
			r.q.cq.compressed = true
			r.write(0, 5000)
			r.receive(1, 5000)
			c.put(r)
			r.next = 2
			pkts := make([]Packet, 16)
			n := r.q.Poll(pkts)
			if n < 1 || !r.is(&pkts[0], 0, 5000) {
				t.Fatalf("%d frames", n)
			}
			if s := r.q.Stats(); s.Drops != c.want || (s.Resets == 1) != c.reset ||
				(r.starts == 1) != c.reset {
				t.Fatalf("drops %+v resets %d", s.Drops, s.Resets)
			}
			r.checkOwners(t, pkts[:n])
			r.q.Release(pkts[:n])
			r.q.Refill()
			if l := r.q.format.(*multiSGE); l.missing != 0 || r.q.pc-r.q.cc != 64 ||
				uint16(r.q.pc) != r.posted() {
				t.Fatalf("%d buffers missing, %d descriptors, %d posted", l.missing,
					r.q.pc-r.q.cc, r.posted())
			}
			r.nic.pi, r.q.count = r.q.cq.ci, rxCounts{}
			r.exercise(t, rand.New(rand.NewPCG(1, 1)), 500)
		})
	}
	t.Run("of no pool", func(t *testing.T) {
		r := newSegRig(t, 64, 64*rigSegs)
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		r.q.Release([]Packet{{Frame: 64 * rigSegs}})
	})
}

// A ring without a single complete descriptor stalls, and goes on with buffers of
// the pool.
func TestSegmentedStarvation(t *testing.T) {
	r := newSegRig(t, 64, 64*rigSegs)
	r.receive(64, 5000)
	pkts := make([]Packet, 64)
	if n := r.q.Poll(pkts); n != 64 || r.posted() != 64 {
		t.Fatalf("%d packets, %d posted", n, r.posted())
	}
	if s := r.q.Stats(); s.Stalls != 1 {
		t.Errorf("%d stalls", s.Stalls)
	}
	r.pool.Put(pkts[0].Frame) // three buffers, as a send queue gives them back
	if r.q.Poll(pkts[:1]); r.posted() != 65 || r.pool.Free() != 0 {
		t.Errorf("%d posted, %d free", r.posted(), r.pool.Free())
	}
	r.checkOwners(t, pkts[1:])
}

func TestSegmentedAllocations(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		r := newSegRig(t, 64, 64*rigSegs)
		if compressed {
			r.q.cq.compressed = true
		}
		pkts, pieces, minis := make([]Packet, 32), make([][]byte, 0, rigSegs), make([][8]byte, 32)
		for i := range minis {
			minis[i] = miniHash(uint32(i), 9000)
		}
		title := receive(0, 9000)
		if n := testing.AllocsPerRun(200, func() {
			for i := range minis {
				binary.BigEndian.PutUint16(title[0x3c:], r.next)
				if !compressed {
					r.nic.put(title)
				} else if i == 0 {
					r.nic.compress(title, minis)
				}
				r.next++
			}
			n := r.q.Poll(pkts)
			for i := range n {
				pieces = r.q.Segments(pieces[:0], &pkts[i])
			}
			r.q.Release(pkts[:n])
			r.q.Arm()
		}); n != 0 {
			t.Errorf("compressed %v: %v allocations", compressed, n)
		}
		if s := r.q.Stats(); s.Segmented < 32*200 || s.Resets != 0 {
			t.Errorf("measured the wrong thing: %+v", s)
		}
	}
}

// The NIC writes whatever it likes into the completions of a ring with several
// buffers per descriptor.
func FuzzSegmentedCompletions(f *testing.F) {
	add := func(build func(r *segRig)) {
		r := newSegRig(f, 64, 64*rigSegs)
		build(r)
		f.Add(slices.Clone(r.nic.buf[:r.nic.pi*64]))
	}
	add(func(r *segRig) { r.receive(3, 9000); r.receive(1, 60) })
	add(func(r *segRig) {
		r.q.cq.compressed = true
		r.arrive(0, 20, func(id uint32) int { return 60 + 450*int(id) })
	})
	f.Add(append(failed(0xe0, 0x01, 0)[:], receive(1, rigSegs*rigSegSize)[:]...))
	f.Add(append(receive(0, 9472)[:], receive(1, 9473)[:]...))
	f.Add(compressed(receive(0, 9))[:])
	r := newSegRig(f, 64, 64*rigSegs+16)
	r.q.cq.compressed = true
	f.Fuzz(func(t *testing.T, stream []byte) {
		r.survive(t, stream, func() { r.checkOwners(t, nil) })
		r.q.Refill()
	})
}
