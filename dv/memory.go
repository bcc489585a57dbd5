package dv

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"
)

// deviceMemory is all that the NIC reads and writes of ours. The arena (frames, then
// the staging memory of each send queue) is registered as one region; rings
// and doorbell records are known to the NIC through the queues.
type deviceMemory struct {
	arena, rings *mmio.Region
	used         int // bytes of rings given out
	records      int // doorbell records given out
}

// allocate maps everything p asks for.
func (m *deviceMemory) allocate(p *plan) (err error) {
	if m.arena, err = mmio.AllocHuge(p.arenaBytes()); err != nil {
		return fmt.Errorf("frame buffers: %w", err)
	}
	if m.rings, err = mmio.Alloc(p.ringBytes()); err != nil {
		return errors.Join(fmt.Errorf("rings: %w", err), m.arena.Close())
	}
	m.used = p.recordBytes()
	return nil
}

// free unmaps everything. The NIC must not know of it any more.
func (m *deviceMemory) free() error {
	return errors.Join(m.arena.Close(), m.rings.Close())
}

// ring is the next n bytes, a multiple of the page size.
func (m *deviceMemory) ring(n int) *mmio.Region {
	r := m.rings.Sub(m.used, n)
	m.used += n
	return r
}

// record is the next doorbell record.
func (m *deviceMemory) record() *mmio.Region {
	r := m.rings.Sub(m.records*recordStride, 8)
	m.records++
	return r
}
