package rdma

import "gvisor.dev/gvisor/pkg/buffer"

const (
	// chunkMin is the most payload that goes into a chunk of netstack's own: there are smaller ones
	// for it.
	chunkMin = buffer.MaxChunkSize / 2
	// maxChunks is how many a worker keeps, of 64 KiB each; a power of two.
	maxChunks = 32
)

// chunks is the memory that large payloads are copied into. netstack clears every chunk that it
// takes from its pool, 64 KiB for any payload of more than 32; so the worker keeps a view of each
// chunk it gave away, and writes into that again when nobody else has one.
//
// That nobody has is for package buffer to say, which writes into a chunk only if it has one
// reference, and else into a copy of it (View.Write), or not at all (Buffer.Append). Bytes that
// somebody still refers to are thus never written to, whatever the stack does with a packet: a view
// taken for free by mistake would cost a copy. One worker owns it.
type chunks struct {
	// the only ones of their chunks; the last is taken first: caches may still have it
	free  []*buffer.View
	given [maxChunks]*buffer.View // a ring: the stack has others, or had
	// of given, free-running: what was given longest ago is at tail
	head, tail uint32
}

// get returns an empty view of a chunk of 64 KiB that has no other. It stays ours; the stack is
// given a clone. Nil: all are in use.
func (c *chunks) get() *buffer.View {
	c.collect()
	var v *buffer.View
	switch n := len(c.free); {
	case n > 0:
		v, c.free = c.free[n-1], c.free[:n-1]
		v.Reset()
	case c.head-c.tail < maxChunks:
		v = buffer.NewView(buffer.MaxChunkSize)
	default:
		return nil
	}
	c.lend(v)
	return v
}

// lend notes that the stack is about to have v's chunk.
func (c *chunks) lend(v *buffer.View) {
	c.given[c.head%maxChunks] = v
	c.head++
}

// collect frees what has come back of what was given, until it finds one that has not; that one's
// turn comes again after all others.
func (c *chunks) collect() {
	for c.head != c.tail {
		v := c.given[c.tail%maxChunks]
		c.tail++
		if !unshared(v) {
			c.lend(v)
			return
		}
		c.free = append(c.free, v)
	}
}

// unshared reports whether v is the only view of its chunk; what v holds is lost. Appending to a
// buffer fills up its last chunk, if that is the buffer's alone.
func unshared(v *buffer.View) bool {
	v.Reset()
	v.Grow(1)
	b := buffer.MakeWithView(v)
	b.Append(buffer.NewViewSize(1))
	if v.Size() > 1 {
		return true
	}
	b.Truncate(1)
	return false
}

// release lets go of all chunks.
func (c *chunks) release() {
	for ; c.tail != c.head; c.tail++ {
		c.given[c.tail%maxChunks].Release()
	}
	for _, v := range c.free {
		v.Release()
	}
	*c = chunks{}
}
