package dv

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

// alloc returns the offset of n contiguous bytes (n > 0, at most half of the
// memory), false if there is no room now. A piece that would run over the end
// starts at the beginning instead, and what it skipped is freed with it.
func (s *staging) alloc(n uint32) (uint32, bool) {
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

// restart has the next piece come from the start of the memory, when none is in use: what was written last time is likelier to be in
// the processor's caches.
func (s *staging) restart() {
	s.head += -s.head & (s.size - 1)
	s.tail = s.head
}
