package rdma

import "sync/atomic"

// recent remembers hashes that were noted lately: of two in one place the later stays, so that the
// more are noted, the sooner one is forgotten. Its size is fixed, and nothing allocates. Any
// goroutine may use it.
type recent struct {
	slots []atomic.Uint32 // by the low bits of a hash: its high 32 bits, the lowest of them set
}

// newRecent has room for n hashes, a power of two.
func newRecent(n int) recent { return recent{make([]atomic.Uint32, n)} }

// slot is the place of a hash, and what stands there if it was noted.
func (r *recent) slot(hash uint64) (*atomic.Uint32, uint32) {
	return &r.slots[hash&uint64(len(r.slots)-1)], uint32(hash>>32) | 1
}

// note remembers a hash. One that is there already costs no store.
func (r *recent) note(hash uint64) {
	if s, tag := r.slot(hash); s.Load() != tag {
		s.Store(tag)
	}
}

// has reports whether a hash is remembered. It is wrong about one hash in 2^31 times the number of
// slots.
func (r *recent) has(hash uint64) bool {
	s, tag := r.slot(hash)
	return s.Load() == tag
}
