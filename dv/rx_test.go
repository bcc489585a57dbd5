package dv

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A descriptor is {bytes, lkey, address}, a full ring is published, and the
// consumer index is told no later than the buffers.
func TestRxRingBytes(t *testing.T) {
	r := newRxRig(t, 64, 80)
	if got := r.posted(); got != 64 {
		t.Fatalf("record says %d buffers, want 64", got)
	}
	for _, slot := range []int{0, 1, 63} {
		at := r.q.ring[slot*16 : slot*16+16]
		f := r.q.slots[slot]
		want := fmt.Sprintf("00000800000012a4%016x", r.pool.mem.Addr()+uint64(f)*2048)
		if got := hex.EncodeToString(at); got != want {
			t.Errorf("descriptor %d: %s, want %s", slot, got, want)
		}
	}
	r.receive(40, 100)
	pkts := make([]Packet, 64)
	r.q.Release(pkts[:r.q.Poll(pkts)])
	if ci, posted := r.cqRec.LoadBE32(0), r.posted(); ci != 40 || posted != 104 {
		t.Errorf("records say consumer index %d and %d buffers, want 40 and 104", ci, posted)
	}
}

// Buffers kept back for the next batch go to the NIC before the owner sleeps.
func TestRxArmPublishes(t *testing.T) {
	r := newRxRig(t, 64, 64)
	r.receive(3, 60)
	pkts := make([]Packet, 8)
	r.q.Release(pkts[:r.q.Poll(pkts)])
	if got := r.posted(); got != 64 {
		t.Errorf("record says %d before the batch is full, want 64", got)
	}
	if r.q.Arm(); r.posted() != 67 {
		t.Errorf("record says %d, want 67", r.posted())
	}
	if word := r.cqRec.LoadBE32(4); word != 3 {
		t.Errorf("arm word %#x, want consumer index 3", word)
	}
}

// Left is what there was before the NIC was given more, not what there is afterwards.
func TestRxLeft(t *testing.T) {
	r := newRxRig(t, 64, 64)
	if r.q.Left() != 0 || r.q.Size() != 64 {
		t.Errorf("%d of %d left before the first buffers, want 0 of 64", r.q.Left(), r.q.Size())
	}
	r.receive(24, 60)
	pkts := make([]Packet, 24)
	r.q.Release(pkts[:r.q.Poll(pkts)])
	if got := r.q.Left(); got != 40 {
		t.Errorf("%d left after 24 frames, want 40", got)
	}
}

func TestRxPacketFields(t *testing.T) {
	r := newRxRig(t, 64, 64)
	cqe := receive(0, 72)
	binary.BigEndian.PutUint32(cqe[0x1c:], 0x07496064) // as before, with a stripped tag
	r.nic.put(cqe)
	copy(r.pool.Bytes(r.q.slots[0]), "frame bytes")
	var pkts [4]Packet
	if n := r.q.Poll(pkts[:]); n != 1 {
		t.Fatalf("%d packets, want 1", n)
	}
	p := pkts[0]
	if string(p.Data[:11]) != "frame bytes" || len(p.Data) != 72 || cap(p.Data) != 2048 {
		t.Errorf("data %q of %d bytes and capacity %d", p.Data[:11], len(p.Data), cap(p.Data))
	}
	if p.VLAN != 0x6064 || p.Hash != 0x51ccc178 || p.Timestamp != 0x1122334466 {
		t.Errorf("VLAN %04x hash %08x timestamp %x", p.VLAN, p.Hash, p.Timestamp)
	}
	if want := RxIPv4 | RxTCP | RxVLAN | RxL3OK | RxL4OK | RxHash; p.Flags != want {
		t.Errorf("flags %b, want %b", p.Flags, want)
	}
}

// A checksum is vouched for only where the NIC knows the header it belongs to.
func TestVerdict(t *testing.T) {
	const l3ok, l4ok = 0x0200, 0x0400
	v := newHeaderStatusTable()
	for _, c := range []struct {
		name   string
		status uint16
		want   RxFlags
	}{
		{"IPv4 TCP data", l3ok | l4ok | 0x48, RxIPv4 | RxTCP | RxL3OK | RxL4OK},
		{"IPv4 TCP SYN", l3ok | l4ok | 0x18, RxIPv4 | RxTCP | RxL3OK | RxL4OK},
		{"IPv4 TCP bare ACK", l3ok | l4ok | 0x38, RxIPv4 | RxTCP | RxL3OK | RxL4OK},
		{"IPv4 UDP", l3ok | l4ok | 0x28, RxIPv4 | RxUDP | RxL3OK | RxL4OK},
		{"IPv4 UDP, wrong UDP checksum", l3ok | 0x28, RxIPv4 | RxUDP | RxL3OK},
		{"IPv4 UDP, wrong header checksum", l4ok | 0x28, RxIPv4 | RxUDP},
		{"IPv4 other, bit set nevertheless", l3ok | l4ok | 0x08, RxIPv4 | RxL3OK},
		{"IPv4 fragment, bit set nevertheless", l3ok | l4ok | 0xa8, RxIPv4 | RxFragment | RxL3OK},
		{"IPv6 TCP", l3ok | l4ok | 0x44, RxIPv6 | RxTCP | RxL3OK | RxL4OK},
		{"IPv6 UDP, no L3 bit", l4ok | 0x24, RxIPv6 | RxUDP | RxL3OK | RxL4OK},
		{"no IP, bits set nevertheless", l3ok | l4ok, 0},
		{"reserved L3 type", l3ok | l4ok | 0x4c, RxTCP},
		{"reserved L4 type", l3ok | l4ok | 0x58, RxIPv4 | RxL3OK},
		{"tag taken out", 0x01, RxVLAN},
		{"options", l3ok | l4ok | 0x4a, RxIPv4 | RxTCP | RxL3OK | RxL4OK},
		{"upper bits", 0xf900 | l3ok | l4ok | 0x48, RxIPv4 | RxTCP | RxL3OK | RxL4OK},
	} {
		if got := v.flagsFor(c.status); got != c.want {
			t.Errorf("%s: flags %09b, want %09b", c.name, got, c.want)
		}
	}
}

// Every frame has exactly one owner, and every frame received is delivered
// once and in order: over many passes, in odd portions, with the counters
// started just before each place where one of them wraps.
func TestRxConservation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 2))
	for _, entries := range []int{64, 128, 1024} {
		for _, c := range []struct {
			name       string
			descriptor uint32 // buffers consumed so far
			completion uint32 // completions consumed so far
		}{
			{"from 0", 0, 0},
			{"16-bit descriptor count", 1<<16 - 40, 1<<16 - 40},
			{"24-bit consumer index", 7, 1<<24 - 100},
			{"32-bit counts", 1<<32 - 70, 1<<32 - 90},
		} {
			t.Run(fmt.Sprintf("%d entries %s", entries, c.name), func(t *testing.T) {
				r := newRxRig(t, entries, entries+17)
				r.startAt(c.descriptor, c.completion)
				r.exercise(t, rng, 6*entries)
			})
		}
	}
}

// startAt moves the counters of queue and NIC, as if so much had happened.
func (r *rxRig) startAt(descriptor, completion uint32) {
	q := r.q
	frames := make([]Frame, 0, q.pc-q.cc)
	for ; q.cc != q.pc; q.cc++ {
		frames = append(frames, q.slots[q.cc&q.mask])
	}
	q.cc, q.pc, q.posted = descriptor, descriptor, descriptor
	q.cq.ci, r.nic.pi, r.next = completion, completion, uint16(descriptor)
	for at := 63; at < len(r.nic.buf); at += 64 {
		r.nic.buf[at] = 0xf0
	}
	for _, f := range frames {
		q.giveBuffer(f)
	}
	q.publishBuffers()
}

// exercise moves total frames through the queue in random portions.
func (r *rxRig) exercise(t *testing.T, rng *rand.Rand, total int) {
	t.Helper()
	var held []Packet
	in, out := uint32(0), uint32(0)
	pkts := make([]Packet, 50)
	for out < uint32(total) {
		room := int(r.posted() - r.next)
		for range rng.IntN(room + 1) {
			slot := uint32(r.next) & r.q.mask
			addr := binary.BigEndian.Uint64(r.q.ring[slot*16+8:])
			frame := r.pool.buf[addr-r.pool.mem.Addr():]
			binary.BigEndian.PutUint32(frame, in)
			r.receive(1, 14+rng.IntN(2048-13))
			in++
		}
		n := r.q.Poll(pkts[:rng.IntN(len(pkts))])
		for i := range n {
			if got := binary.BigEndian.Uint32(pkts[i].Data); got != out {
				t.Fatalf("frame %d delivered where %d was due", got, out)
			}
			out++
		}
		held = append(held, pkts[:n]...)
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		back := rng.IntN(len(held) + 1)
		r.q.Release(held[:back])
		held = slices.Delete(held, 0, back)
		if rng.IntN(10) == 0 {
			r.q.Refill()
		}
		r.checkOwners(t, held)
		if ci := r.cqRec.LoadBE32(0); ci > 0xffffff {
			t.Fatalf("record says consumer index %#x at %#x", ci, r.q.cq.ci)
		}
	}
	if got := r.q.Stats(); got.Packets != uint64(out) || got.Resets != 0 {
		t.Errorf("counted %d packets and %d resets, want %d and 0", got.Packets, got.Resets, out)
	}
}

// checkOwners fails unless every frame is in exactly one place.
func (r *rxRig) checkOwners(t *testing.T, held []Packet) {
	t.Helper()
	owners := make([]int, r.pool.count)
	for i := r.q.cc; i != r.q.pc; i++ {
		owners[r.q.slots[i&r.q.mask]]++
	}
	for _, p := range held {
		owners[p.Frame]++
	}
	for _, f := range r.pool.free {
		owners[f]++
	}
	for f, n := range owners {
		if n != 1 {
			t.Fatalf("frame %d has %d owners", f, n)
		}
	}
}

// A completion ring larger than the receive ring has a mask of its own.
func TestRxCompletionRingLarger(t *testing.T) {
	r := newRxRig(t, 64, 64)
	mem := memory(t, 256*64)
	r.q.cq = newCompRing(mem, r.cqRec, 256)
	r.nic = fakeCQ{buf: mem.Bytes(), size: 256}
	r.exercise(t, rand.New(rand.NewPCG(testSeed(t), 3)), 1500)
}

// More completions than there were buffers: the surplus must not hand out
// frames that the caller has.
func TestRxSurplusCompletion(t *testing.T) {
	r := newRxRig(t, 64, 64)
	pkts := make([]Packet, 100)
	r.receive(64, 60)
	n := r.q.Poll(pkts)
	r.receive(1, 60)
	if again := r.q.Poll(pkts[n:]); n != 64 || again != 0 {
		t.Fatalf("%d packets, then %d", n, again)
	}
	r.checkOwners(t, pkts[:n])
}

// A ring whose frames are all with the caller stalls, is counted, and goes on
// when the pool has frames again.
func TestRxStarvation(t *testing.T) {
	r := newRxRig(t, 64, 64)
	r.receive(64, 60)
	pkts := make([]Packet, 64)
	if n := r.q.Poll(pkts); n != 64 {
		t.Fatalf("%d packets", n)
	}
	if s := r.q.Stats(); s.Stalls != 1 {
		t.Errorf("%d stalls, want 1", s.Stalls)
	}
	for _, p := range pkts[:10] {
		r.pool.Put(p.Frame) // as a send queue does when it has sent them on
	}
	if r.q.Poll(pkts[:1]); r.posted() != 74 {
		t.Errorf("%d buffers posted, want 74", r.posted())
	}
	r.receive(10, 60)
	if n := r.q.Poll(pkts[:10]); n != 10 {
		t.Errorf("%d packets, want 10", n)
	}
}

func TestRxReleaseOddities(t *testing.T) {
	r := newRxRig(t, 64, 70)
	r.receive(2, 60)
	pkts := make([]Packet, 4)
	n := r.q.Poll(pkts)
	r.q.Release(pkts[:n])
	r.q.Release(pkts[:n]) // released already: nothing
	r.checkOwners(t, nil)
	f, ok := r.pool.Get()
	if !ok {
		t.Fatal("no spare frame")
	}
	r.q.Release([]Packet{{Frame: f}}) // ring full: to the pool
	r.checkOwners(t, nil)
	defer func() {
		if recover() == nil {
			t.Error("a frame outside the pool was taken")
		}
	}()
	r.q.Release([]Packet{{Frame: 70}})
}

func TestRxAllocations(t *testing.T) {
	r := newRxRig(t, 256, 300)
	pkts := make([]Packet, 32)
	if n := testing.AllocsPerRun(200, func() {
		for range 64 {
			r.nic.put(receive(r.next, 60))
			r.next++
		}
		for n := r.q.Poll(pkts); n > 0; n = r.q.Poll(pkts) {
			r.q.Release(pkts[:n])
		}
		r.q.Refill()
		r.q.Arm()
	}); n != 0 {
		t.Errorf("%v allocations in a round of Poll, Release, Refill and Arm", n)
	}
	if s := r.q.Stats(); s.Packets < 64*200 || s.Resets != 0 {
		t.Errorf("measured the wrong thing: %+v", s)
	}
}
