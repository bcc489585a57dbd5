package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// check says what is wrong, nil if nothing is, or if the device is over.
func (b *frameBooks) check() error {
	if b.dev.Err() != nil {
		return nil
	}
	moves := b.positions()
	if moves == b.moves {
		return nil
	}
	clear(b.owner)
	for _, f := range *b.free {
		if err := b.claim(f, thePool); err != nil {
			return err
		}
		if b.holds != nil && (*b.holds)[f].Load() != 0 {
			return fmt.Errorf("frame %d is in the pool and has %d holders", f,
				(*b.holds)[f].Load())
		}
	}
	for i := range b.rx {
		if err := b.received(i); err != nil {
			return err
		}
	}
	for i := range b.tx {
		if err := b.sent(i); err != nil {
			return err
		}
	}
	for f, o := range b.owner {
		if o == nobody {
			return fmt.Errorf("frame %d belongs to nobody: it is lost", f)
		}
	}
	b.moves = moves
	return nil
}

// positions changes whenever a frame moves, as good as always.
func (b *frameBooks) positions() uint64 {
	sum := uint64(len(*b.free)) + 1
	for i := range b.rx {
		r := &b.rx[i]
		sum = sum*0x9e3779b97f4a7c15 + uint64(*r.cc)<<32 + uint64(*r.pc)
	}
	for i := range b.tx {
		t := &b.tx[i]
		sum = sum*0x9e3779b97f4a7c15 + uint64(*t.pc)<<32 + uint64(*t.stageEnd)
		sum = sum*0x9e3779b97f4a7c15 + uint64(*t.cc)<<32 + uint64(*t.stageBegin)
	}
	return sum
}

// claim enters the owner of a frame.
func (b *frameBooks) claim(f dv.Frame, o owner) error {
	if int(f) >= len(b.owner) {
		return fmt.Errorf("%v has frame %d of %d", o, f, len(b.owner))
	}
	if had := b.owner[f]; had != nobody {
		return fmt.Errorf("frame %d has two owners: %v and %v", f, had, o)
	}
	b.owner[f] = o
	return nil
}

// received enters the frames in the descriptors of receive queue i, which have to point to them.
func (b *frameBooks) received(i int) error {
	r := &b.rx[i]
	slots, ring := *r.slots, *r.ring
	entries := uint32(len(slots) / r.perWQE)
	if n := *r.pc - *r.cc; n > entries {
		return fmt.Errorf("receive queue %d has %d of %d descriptors", i, n, entries)
	}
	first, end := *r.cc, *r.pc
	if r.holes != nil { // a descriptor keeps buffers that no frame has reached
		first, end = 0, entries
	}
	for d := first; d != end; d++ {
		slot := int(d & (entries - 1))
		from := 0
		if r.holes != nil {
			from = int((*r.holes)[slot])
		}
		for e := slot*r.perWQE + from; e < (slot+1)*r.perWQE; e++ {
			addr := binary.BigEndian.Uint64(ring[(e+1)*r.size-8:])
			if err := b.entry(i, e, slots[e], addr); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry enters frame f, which is in entry e of receive queue i, where the NIC reads address addr.
func (b *frameBooks) entry(i, e int, f dv.Frame, addr uint64) error {
	if err := b.claim(f, receiveQueues+owner(i)); err != nil {
		return err
	}
	if want := b.base + uint64(f)*uint64(b.dev.Pool().FrameSize()); addr != want {
		return fmt.Errorf("receive queue %d: entry %d points to %#x, frame %d is at %#x", i, e,
			addr, f, want)
	}
	if b.holds != nil && (*b.holds)[f].Load() < 1 {
		return fmt.Errorf("receive queue %d has frame %d, which nobody holds", i, f)
	}
	return nil
}

// sent enters the frames that send queue i has in flight.
func (b *frameBooks) sent(i int) error {
	t := &b.tx[i]
	if n := *t.stageEnd - *t.stageBegin; n > t.stageSize {
		return fmt.Errorf("send queue %d has given out %d of %d bytes of its staging memory", i, n,
			t.stageSize)
	}
	if n := *t.pc - *t.cc; n > t.descriptors {
		return fmt.Errorf("send queue %d has %d of %d blocks in use", i, n, t.descriptors)
	}
	if err := t.staged(); err != nil {
		return fmt.Errorf("send queue %d: %w", i, err)
	}
	for at := *t.first; at != *t.end; at++ {
		f := t.frames.Index(int(at) % t.frames.Len()).FieldByName("frame").Uint()
		if err := b.claim(dv.Frame(f), sendQueues+owner(i)); err != nil {
			return err
		}
	}
	return nil
}

// pieceAlign is what pieces of staging memory are aligned to, in bytes.
const pieceAlign = 64

// staged checks that no two descriptors that are not completed point to the same staging memory.
func (t *sendBooks) staged() error {
	t.looks++
	blocks := uint32(len(*t.ring) / mlx5.BB)
	for at := *t.cc; at != *t.pc; {
		first := int(at&(blocks-1)) * mlx5.BB
		units := int((*t.ring)[first+7] & 0x3f) // of 16 bytes, of which the first is the head
		if units == 0 {
			return nil // a descriptor for several packets that still takes more
		}
		for u := 1; u < units; u++ {
			segment := (*t.ring)[(first+u*mlx5.DSSize)%len(*t.ring):][:mlx5.DSSize]
			if err := t.piece(segment); err != nil {
				return err
			}
		}
		at += uint32(mlx5.BBs(units))
	}
	return nil
}

// piece enters the memory that a data segment points to. Other segments look like none: their last
// bytes are no address in the staging memory.
func (t *sendBooks) piece(segment []byte) error {
	size, addr := binary.BigEndian.Uint32(segment), binary.BigEndian.Uint64(segment[8:])
	from := addr - t.stage
	if from >= uint64(t.stageSize) || size == 0 || uint64(size) > uint64(t.stageSize)-from {
		return nil
	}
	for p := from / pieceAlign; p <= (from+uint64(size)-1)/pieceAlign; p++ {
		if t.pieces[p] == t.looks {
			return fmt.Errorf("two packets are at byte %d of its staging memory", p*pieceAlign)
		}
		t.pieces[p] = t.looks
	}
	return nil
}
