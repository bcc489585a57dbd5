package dv

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// compress puts one CQE block: the title is written as cqe with n in place
// of its length, and each mini, in entries 1, 8, 16 ... behind it. Entries in
// between keep what they held. Offsets are spelled out on purpose.
func (f *fakeCQ) compress(cqe *[64]byte, minis [][8]byte) {
	n := uint32(len(minis))
	for i, m := range minis {
		at := f.pi + max(1, uint32(i/8*8))
		copy(f.buf[at%f.size*64+uint32(i%8)*8:], m[:])
	}
	title := *cqe
	binary.BigEndian.PutUint32(title[0x2c:], n)
	title[63] = title[63]&^1 | 0x0c | byte(f.pi/f.size&1)
	copy(f.buf[f.pi%f.size*64:], title[:])
	f.pi += n
}

func miniHash(hash uint32, n int) (m [8]byte) {
	binary.BigEndian.PutUint32(m[:], hash)
	binary.BigEndian.PutUint32(m[4:], uint32(n))
	return m
}

func newZipRig(t testing.TB, entries, frames int) *rxRig {
	r := newRxRig(t, entries, frames)
	r.q.cq.compressed = true
	return r
}

// receiveCompressed lets the NIC deliver n frames in one CQE block.
func (r *rxRig) receiveCompressed(n int, size func(i int) int) {
	r.minis = r.minis[:0]
	for i := range n {
		r.minis = append(r.minis, miniHash(0x1000+uint32(i), size(i)))
	}
	r.nic.compress(receive(r.next, 0), r.minis)
	r.next += uint16(n)
}

// Each frame of a CQE block has its own length and hash, and everything else of the title, in
// whatever portions it is polled.
func TestRxSessionFields(t *testing.T) {
	for _, portion := range []int{1, 3, 8, 64} {
		r := newZipRig(t, 64, 64)
		r.receive(1, 77)
		r.receiveCompressed(17, func(i int) int { return 100 + i })
		r.receive(1, 78)
		var all []Packet
		pkts := make([]Packet, portion)
		for n := r.q.Poll(pkts); n > 0; n = r.q.Poll(pkts) {
			all = append(all, pkts[:n]...)
		}
		if len(all) != 19 || len(all[0].Data) != 77 || len(all[18].Data) != 78 {
			t.Fatalf("by %d: %d packets", portion, len(all))
		}
		const flags = RxIPv4 | RxTCP | RxL3OK | RxL4OK | RxHash
		for i, p := range all[1:18] {
			if len(p.Data) != 100+i || p.Hash != uint32(0x1000+i) || p.Flags != flags ||
				p.Timestamp != 0x1122334466 || p.Frame != r.q.slots[i+1] {
				t.Errorf("packet %d: %d bytes hash %#x flags %b", i, len(p.Data), p.Hash, p.Flags)
			}
		}
		if s := r.q.Stats(); s.Compressed != 17 || s.Packets != 19 {
			t.Errorf("counted %+v", s)
		}
	}
}

// CQE blocks of every length, single completions between them, polled in odd
// portions, with counters about to wrap: nothing is lost, doubled or reordered,
// and what CQE blocks leave in the ring is never taken for a completion. The
// NIC's ring has room for just as many completions as there are buffers.
func TestRxSessionConservation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 7))
	for _, entries := range []int{64, 128} {
		for _, at := range []struct{ descriptor, completion uint32 }{
			{0, 0}, {1<<16 - 40, 1<<16 - 40}, {7, 1<<24 - 100}, {1<<32 - 70, 1<<32 - 90},
		} {
			t.Run(fmt.Sprintf("%d entries from %#x and %#x", entries, at.descriptor, at.completion),
				func(t *testing.T) {
					r := newZipRig(t, entries, entries+17)
					r.startAt(at.descriptor, at.completion)
					r.exerciseZipped(t, rng, 60*entries)
				})
		}
	}
}

func (r *rxRig) exerciseZipped(t *testing.T, rng *rand.Rand, total int) {
	t.Helper()
	in, out, seen := uint32(0), uint32(0), uint32(0)
	pkts := make([]Packet, 70)
	var held []Packet
	for round := 0; out < uint32(total); round++ {
		if round > total {
			t.Fatalf("only %d of %d frames delivered", out, in)
		}
		for room := int(r.posted() - r.next); room > 0 &&
			rng.IntN(3) > 0; room = int(r.posted() - r.next) {
			n := 1 + rng.IntN(min(room, 64))
			for i := range n {
				slot := uint32(r.next+uint16(i)) & r.q.mask
				addr := binary.BigEndian.Uint64(r.q.ring[slot*16+8:])
				binary.BigEndian.PutUint32(r.pool.buf[addr-r.pool.mem.Addr():], in+uint32(i))
			}
			first := in
			if in += uint32(n); n == 1 {
				r.receive(1, 14+int(first%2035))
				continue
			}
			// The lowest byte of each mini is what would be an owner bit: all values come.
			r.receiveCompressed(n, func(i int) int { return 14 + int((first+uint32(i))%2035) })
			seen += uint32(n)
		}
		if used := r.nic.pi - r.cqRec.LoadBE32(0); used&0xffffff > r.nic.size {
			t.Fatalf("%d completions in a ring of %d", used&0xffffff, r.nic.size)
		}
		n := r.q.Poll(pkts[:rng.IntN(len(pkts))])
		for _, p := range pkts[:n] {
			if got := binary.BigEndian.Uint32(p.Data); got != out ||
				len(p.Data) != 14+int(out%2035) {
				t.Fatalf("frame %d of %d bytes delivered where %d was due", got, len(p.Data), out)
			}
			out++
		}
		held = append(held, pkts[:n]...)
		back := rng.IntN(len(held) + 1)
		r.q.Release(held[:back])
		held = append(held[:0], held[back:]...)
		if rng.IntN(10) == 0 {
			r.q.Refill()
		}
		r.checkOwners(t, held)
	}
	if s := r.q.Stats(); s.Packets != uint64(out) || s.Resets != 0 || s.Compressed == 0 ||
		s.Compressed > uint64(seen) {
		t.Errorf("counted %+v, want %d packets of which up to %d compressed", s, out, seen)
	}
}

// A CQE block that cannot be resets the queue, which then works again; one that
// was broken off by an event from outside is passed over.
func TestRxSessionMisuse(t *testing.T) {
	good := miniHash(1, 60)
	for _, c := range []struct {
		name  string
		put   func(r *rxRig)
		drops RxDrops
	}{
		{"longer than the ring", func(r *rxRig) { r.nic.put(compressed(receive(0, 65))) },
			RxDrops{Malformed: 1}},
		{"of one", func(r *rxRig) { r.nic.put(compressed(receive(0, 1))) }, RxDrops{Malformed: 1}},
		{"out of order", func(r *rxRig) { r.nic.compress(receive(1, 0), [][8]byte{good, good}) },
			RxDrops{Malformed: 1}},
		{"of errors", func(r *rxRig) {
			r.nic.compress(failed(0xe0, 0x04, 0),
				[][8]byte{good, good})
		}, RxDrops{Error: 1}},
		{"frame too long", func(r *rxRig) {
			r.nic.compress(receive(0, 0),
				[][8]byte{good, miniHash(1, 2049)})
		}, RxDrops{Malformed: 1}},
		{"frame too short", func(r *rxRig) {
			r.nic.compress(receive(0, 0),
				[][8]byte{good, miniHash(1, 13)})
		}, RxDrops{Malformed: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newZipRig(t, 64, 70)
			c.put(r)
			pkts := make([]Packet, 64)
			n := r.q.Poll(pkts)
			r.q.Release(pkts[:n])
			if s := r.q.Stats(); s.Drops != c.drops || s.Resets != 1 {
				t.Fatalf("%d packets, drops %+v resets %d", n, s.Drops, s.Resets)
			}
			r.q.Refill()
			r.checkOwners(t, nil)
			r.nic.pi = r.q.cq.ci
			r.exerciseZipped(t2(t, r), rand.New(rand.NewPCG(1, 1)), 500)
		})
	}
	t.Run("broken off", func(t *testing.T) {
		r := newZipRig(t, 64, 70)
		r.receiveCompressed(20, func(int) int { return 60 })
		pkts := make([]Packet, 5)
		if n := r.q.Poll(pkts); n != 5 {
			t.Fatal(n)
		}
		r.q.signals.raiseBits(signalReset)
		if n := r.q.Poll(pkts[:1]); n != 0 || r.starts != 1 || r.q.cq.ci != 20 {
			t.Fatalf("%d packets, %d starts, consumer index %d", n, r.starts, r.q.cq.ci)
		}
		r.q.Release(pkts)
		r.q.Refill()
		r.exerciseZipped(t2(t, r), rand.New(rand.NewPCG(1, 1)), 500)
	})
}

func TestRxSessionAllocations(t *testing.T) {
	r := newZipRig(t, 64, 64)
	pkts := make([]Packet, 24)
	minis := make([][8]byte, 32)
	for i := range minis {
		minis[i] = miniHash(uint32(i), 60)
	}
	title := receive(0, 0)
	if n := testing.AllocsPerRun(100, func() {
		binary.BigEndian.PutUint16(title[0x3c:], r.next)
		r.nic.compress(title, minis)
		r.next += 32
		r.q.Release(pkts[:r.q.Poll(pkts)])
		r.q.Release(pkts[:r.q.Poll(pkts)])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The NIC writes whatever it likes into a ring of compressed completions.
func FuzzRxSessions(f *testing.F) {
	add := func(build func(r *rxRig)) {
		r := newZipRig(f, 64, 64)
		build(r)
		f.Add(r.nic.buf[:r.nic.pi*64])
	}
	add(func(r *rxRig) { r.receiveCompressed(17, func(i int) int { return 60 + i }) })
	add(func(r *rxRig) {
		r.receive(2, 60)
		r.receiveCompressed(64-2,
			func(int) int { return 2048 })
	})
	add(func(r *rxRig) {
		r.nic.put(compressed(receive(0, 64)))
		r.receiveCompressed(9, func(int) int { return 0x2c })
	})
	f.Add(compressed(receive(0, 8))[:])
	r := newZipRig(f, 64, 80)
	f.Fuzz(func(t *testing.T, stream []byte) { r.hostile(t, stream) })
}
