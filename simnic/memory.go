package simnic

import (
	"fmt"
	"sort"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Memory describes memory that the device may access, as one range of offsets. It may consist of
// pieces that are not adjacent: the pages of a guest, or the banks of its physical memory with
// holes between them.
//
// A Memory does not own its regions. Its creator keeps it mapped until every object made with it is
// destroyed.
type Memory struct {
	pieces []piece
	one    *mmio.Region // all of it, when it is one region
	shift  uint         // pieces are this long, log2 bytes; 0: look for the piece
	skew   uint64       // offset 0 lies this far into the first page
	size   uint64
}

// piece describes adjacent memory that starts at an offset of the whole.
type piece struct {
	at  uint64
	mem *mmio.Region
}

// NewMemory returns a Memory of one region.
func NewMemory(r *mmio.Region) *Memory {
	return &Memory{one: r, size: uint64(r.Len())}
}

// NewPagedMemory returns a Memory of length bytes that start offset bytes into the first of pages.
// All pages have the same size, a power of two, as in the page list of a firmware command.
func NewPagedMemory(pages []*mmio.Region, offset, length int) (*Memory, error) {
	if len(pages) == 0 || offset < 0 || length < 0 {
		return nil, statusErrorf(StatusBadParam, "memory of %d pages, %d bytes at offset %d",
			len(pages), length, offset)
	}
	size := pages[0].Len()
	if size == 0 || size&(size-1) != 0 || offset >= size || offset+length > size*len(pages) {
		return nil, statusErrorf(StatusBadParam, "%d bytes at offset %d in %d pages of %d bytes",
			length, offset, len(pages), size)
	}
	m := &Memory{skew: uint64(offset), size: uint64(length)}
	for 1<<m.shift < size {
		m.shift++
	}
	for i, p := range pages {
		if p.Len() != size {
			return nil, statusErrorf(StatusBadParam, "page %d is %d bytes, page 0 is %d", i,
				p.Len(),
				size)
		}
		m.pieces = append(m.pieces, piece{uint64(i * size), p})
	}
	return m, nil
}

// Bank describes memory at a physical address of a guest.
type Bank struct {
	Addr uint64
	Mem  *mmio.Region
}

// NewBankedMemory returns a Memory of banks at their addresses. The holes between them fault on
// access. It is the memory of a physical-address key.
func NewBankedMemory(banks []Bank) (*Memory, error) {
	m := &Memory{}
	for _, b := range banks {
		m.pieces = append(m.pieces, piece{b.Addr, b.Mem})
	}
	sort.Slice(m.pieces, func(i, j int) bool { return m.pieces[i].at < m.pieces[j].at })
	for _, p := range m.pieces {
		if p.at < m.size {
			return nil, statusErrorf(StatusBadParam, "memory bank at %#x overlaps the one before",
				p.at)
		}
		m.size = p.at + uint64(p.mem.Len())
	}
	return m, nil
}

// MemoryPart names Len bytes of a Memory from Offset on; without a Memory a hole, which faults on
// access.
type MemoryPart struct {
	Mem         *Memory
	Offset, Len uint64
}

// maxPieces gives the maximum number of pieces of joined memory.
const maxPieces = 1 << 20

// NewJoinedMemory returns a Memory of parts of others, one behind the other. It is the memory of a
// key of keys. StatusBadParam: a part has a hole or is not there, or there are too many pieces.
func NewJoinedMemory(parts []MemoryPart) (*Memory, error) {
	m := &Memory{}
	for i, p := range parts {
		if p.Mem == nil {
			m.pieces = append(m.pieces, piece{at: m.size})
			m.size += p.Len
			continue
		}
		for off, left := p.Offset, p.Len; left > 0; {
			mem, at := p.Mem.findPiece(off)
			if mem == nil || off >= p.Mem.size || len(m.pieces) == maxPieces {
				return nil, statusErrorf(StatusBadParam,
					"part %d of joined memory ends at %d of %d bytes", i, off, p.Mem.size)
			}
			n := min(uint64(mem.Len())-at, p.Mem.size-off, left)
			m.pieces = append(m.pieces, piece{m.size, mem.Sub(int(at), int(n))})
			m.size, off, left = m.size+n, off+n, left-n
		}
	}
	return m, nil
}

// Len returns the size in bytes, holes included.
func (m *Memory) Len() uint64 { return m.size }

// Slice returns the longest adjacent run of at most n bytes at off. It is empty at a
// hole and at the end.
func (m *Memory) Slice(off uint64, n int) []byte {
	p, at := m.findPiece(off)
	if p == nil || off >= m.size || n <= 0 {
		return nil
	}
	left := min(uint64(p.Len())-at, m.size-off)
	if uint64(n) > left {
		n = int(left)
	}
	return p.Slice(int(at), n)
}

// findPiece returns the piece that holds off, and the offset in it.
func (m *Memory) findPiece(off uint64) (*mmio.Region, uint64) {
	if m.one == nil {
		return m.searchPieces(off)
	}
	if off >= uint64(m.one.Len()) {
		return nil, 0
	}
	return m.one, off
}

// searchPieces does what findPiece does, for several pieces.
func (m *Memory) searchPieces(off uint64) (*mmio.Region, uint64) {
	i := 0
	if m.shift != 0 {
		off += m.skew
		i = int(off >> m.shift)
	} else {
		i = sort.Search(len(m.pieces), func(i int) bool { return m.pieces[i].at > off }) - 1
	}
	if i < 0 || i >= len(m.pieces) {
		return nil, 0
	}
	p := &m.pieces[i]
	if p.mem == nil || off < p.at || off-p.at >= uint64(p.mem.Len()) {
		return nil, 0
	}
	return p.mem, off - p.at
}

// Gather copies len(dst) bytes at off out of the memory and reports whether all of them were there.
func (m *Memory) Gather(off uint64, dst []byte) bool {
	for len(dst) > 0 {
		s := m.Slice(off, len(dst))
		if len(s) == 0 {
			return false
		}
		copy(dst, s)
		dst, off = dst[len(s):], off+uint64(len(s))
	}
	return true
}

// Scatter copies src into the memory at off and reports whether all of it fitted.
func (m *Memory) Scatter(off uint64, src []byte) bool {
	for len(src) > 0 {
		s := m.Slice(off, len(src))
		if len(s) == 0 {
			return false
		}
		copy(s, src)
		src, off = src[len(s):], off+uint64(len(s))
	}
	return true
}

// LoadBE32 returns one atomic, acquiring load of a big-endian word.
func (m *Memory) LoadBE32(off uint64) uint32 {
	p, at := m.alignedWord(off)
	return p.LoadBE32(int(at))
}

// StoreBE32 is one atomic, releasing store of a big-endian word.
func (m *Memory) StoreBE32(off uint64, v uint32) {
	p, at := m.alignedWord(off)
	p.StoreBE32(int(at), v)
}

// alignedWord finds an aligned word. Rings and records are checked when a queue is
// created, so a miss is a bug of the core.
func (m *Memory) alignedWord(off uint64) (*mmio.Region, uint64) {
	p, at := m.findPiece(off)
	if p == nil {
		panic(fmt.Sprintf("simnic: word at offset %d of %d bytes of memory", off, m.size))
	}
	return p, at
}
