package dv

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// deviceMemory is all that the NIC reads and writes of ours. The arena (frames, then
// the staging memory of each send queue) is registered as one region; rings
// and doorbell records are known to the NIC through the queues.
type deviceMemory struct {
	arena, rings *mmio.Region
	used         int // bytes of rings given out
	records      int // doorbell records given out
}

// mapAll maps everything p asks for.
func (m *deviceMemory) mapAll(p *plan) (err error) {
	if m.arena, err = mmio.AllocHuge(p.arenaBytes()); err != nil {
		return fmt.Errorf("frame buffers: %w", err)
	}
	if m.rings, err = mmio.Alloc(p.ringBytes()); err != nil {
		return errors.Join(fmt.Errorf("rings: %w", err), m.arena.Close())
	}
	m.used = p.recordBytes()
	return nil
}

// unmapAll unmaps everything. The NIC must not know of it any more.
func (m *deviceMemory) unmapAll() error {
	return errors.Join(m.arena.Close(), m.rings.Close())
}

// nextRing returns the next n bytes, a multiple of the page size.
func (m *deviceMemory) nextRing(n int) *mmio.Region {
	r := m.rings.Sub(m.used, n)
	m.used += n
	return r
}

// nextRecord returns the next doorbell record.
func (m *deviceMemory) nextRecord() *mmio.Region {
	r := m.rings.Sub(m.records*recordStride, 8)
	m.records++
	return r
}

// sendMemory holds memory of a caller's that the NIC may read; the zero value is none.
type sendMemory struct {
	mem  *mmio.Region
	lkey uint32
	err  error // why there is none, though it was asked for
}

// mostPieces says how many pieces of such memory a descriptor points to at most.
const mostPieces = 16

// countPieces returns how many pieces of the memory the bytes of bufs behind the first skip are; 0:
// some are not in it, or they are too many.
func (m *sendMemory) countPieces(bufs [][]byte, skip int) (n int) {
	if m.mem == nil {
		return 0
	}
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		if _, inside := m.mem.Find(b[skip:]); !inside || n == mostPieces {
			return 0
		}
		n, skip = n+1, 0
	}
	return n
}

// putPieces fills w with pointers to these pieces.
func (m *sendMemory) putPieces(w []byte, bufs [][]byte, skip int) {
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		off, _ := m.mem.Find(b[skip:])
		mlx5.PutData(w, uint32(len(b)-skip), m.lkey, m.mem.Addr()+uint64(off))
		w, skip = w[mlx5.DataSegSize:], 0
	}
}

// staging is registered memory that a send queue copies packets into: a ring
// of bytes, given out in contiguous pieces and freed in the same order. head
// and tail are free-running.
type staging struct {
	buf        []byte
	addr       uint64 // of buf[0], as descriptors name it
	lkey       uint32
	size       uint32 // a power of two
	head, tail uint32
}

// stagingAlign keeps every piece on cache lines of its own.
const stagingAlign = 64

// allocPiece returns the offset of n contiguous bytes (n > 0, at most half of the
// memory), false if there is no room now. A piece that would run over the end
// starts at the beginning instead, and what it skipped is freed with it.
func (s *staging) allocPiece(n uint32) (uint32, bool) {
	n = (n + stagingAlign - 1) &^ (stagingAlign - 1)
	at, skip := s.head&(s.size-1), uint32(0)
	if at+n > s.size {
		at, skip = 0, s.size-at
	}
	if s.size-(s.head-s.tail) < skip+n {
		return 0, false
	}
	s.head += skip + n
	return at, true
}

// restartIfEmpty takes the next piece from the start of the memory, when none is in use: what
// was written last time is likelier to be in the processor's caches.
func (s *staging) restartIfEmpty() {
	s.head += -s.head & (s.size - 1)
	s.tail = s.head
}
