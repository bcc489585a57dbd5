package dv

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Pool is the frame buffers of a device: equal pieces of one registered
// region. Frames in receive rings and in callers' hands are not in it. Safe
// for concurrent use; queues take and give in batches.
type Pool struct {
	mem   *mmio.Region
	buf   []byte
	base  uint64 // address of frame 0, as descriptors name it
	lkey  uint32
	size  int // bytes of one frame
	count int

	shares []atomic.Int32 // holders of each frame; nil: there is only ever one
	next   []Frame        // by frame: what it is chained to; nil: there are no chains

	mu   sync.Mutex
	free []Frame // guarded by mu; a stack, so that the warmest frame goes out next
}

// newPool cuts mem, which stays the caller's, into count frames of size bytes.
func newPool(mem *mmio.Region, lkey uint32, size, count int) *Pool {
	p := &Pool{
		mem: mem, buf: mem.Slice(0, size*count), base: mem.Addr(), lkey: lkey,
		size: size, count: count, free: make([]Frame, count),
	}
	for i := range p.free {
		p.free[i] = Frame(count - 1 - i)
	}
	return p
}

// FrameSize returns the size of every frame buffer in bytes: less than the longest
// frame where that takes several of them.
func (p *Pool) FrameSize() int { return p.size }

// Frames returns the number of frames that exist.
func (p *Pool) Frames() int { return p.count }

// Free returns the number of frames in the pool now.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Get takes one frame out of the pool: the caller owns it until Put or
// TxQueue.PostFrame. false: the pool is empty.
func (p *Pool) Get() (Frame, bool) {
	var one [1]Frame
	if p.takeFrames(one[:]) == 0 {
		return NoFrame, false
	}
	return one[0], true
}

// Put gives a frame that the caller owns back to the pool, with those that a
// long Packet has besides.
func (p *Pool) Put(f Frame) { p.returnHolds([]Frame{f}) }

// Bytes returns the whole of a frame that the caller owns.
func (p *Pool) Bytes(f Frame) []byte {
	at := int(f) * p.size
	return p.buf[at : at+p.size : at+p.size]
}

// frameAddr returns where the NIC finds frame f.
func (p *Pool) frameAddr(f Frame) uint64 { return p.base + uint64(f)*uint64(p.size) }

// ownsFrame reports whether f is a frame of this pool.
func (p *Pool) ownsFrame(f Frame) bool { return int(f) < p.count }

// takeFrames moves up to len(dst) frames from the pool to the caller.
func (p *Pool) takeFrames(dst []Frame) int {
	p.mu.Lock()
	n := min(len(dst), len(p.free))
	rest := len(p.free) - n
	copy(dst, p.free[rest:])
	p.free = p.free[:rest]
	p.mu.Unlock()
	p.holdFrames(dst[:n]...)
	return n
}

// returnFrames moves src, which nobody else holds, from the caller to the pool. More frames than
// exist means that one was given back twice: panics.
func (p *Pool) returnFrames(src []Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free)+len(src) > cap(p.free) {
		panic("dv: a frame was given back to the pool twice")
	}
	p.free = append(p.free, src...)
}

// makeShared makes the frames of a pool nobody has taken from yet ones that several
// can hold: each then goes back when the last holder has given it back.
func (p *Pool) makeShared() { p.shares = make([]atomic.Int32, p.count) }

// dropHolds ends n holds on frame f, and reports whether they were the last.
func (p *Pool) dropHolds(f Frame, n int32) bool {
	if p.shares == nil {
		return true
	}
	if !p.ownsFrame(f) {
		panic(fmt.Sprintf("dv: frame %d given back, the pool has %d", f, p.count))
	}
	left := p.shares[f].Add(-n)
	if left < 0 {
		panic("dv: a frame was given back more often than it was handed out")
	}
	return left == 0
}

// returnHolds ends one hold on each frame of src, which is used as scratch memory.
func (p *Pool) returnHolds(src []Frame) {
	if p.next != nil {
		p.backChains(src)
		return
	}
	free := src[:0]
	for _, f := range src {
		if p.dropHolds(f, 1) {
			free = append(free, f)
		}
	}
	p.returnFrames(free)
}

// holdFrames makes the taker of frames of a shared pool their one holder.
func (p *Pool) holdFrames(frames ...Frame) {
	if p.shares == nil {
		return
	}
	for _, f := range frames {
		p.shares[f].Store(1)
	}
}

// makeChainable makes the frames of a pool nobody has taken from yet ones that can be
// linked: the holder of the first of a chain holds all of it.
func (p *Pool) makeChainable() {
	p.next = make([]Frame, p.count)
	for i := range p.next {
		p.next[i] = NoFrame
	}
}

// unchainFirst takes f from the head of its chain and returns the rest: NoFrame if it was alone.
func (p *Pool) unchainFirst(f Frame) Frame {
	if !p.ownsFrame(f) {
		panic(fmt.Sprintf("dv: frame %d given back, the pool has %d", f, p.count))
	}
	next := p.next[f]
	p.next[f] = NoFrame
	return next
}

// backChains gives back the chains that begin with each frame of src.
func (p *Pool) backChains(src []Frame) {
	var some [64]Frame
	n := 0
	for _, f := range src {
		for f != NoFrame {
			some[n] = f
			n++
			if f = p.unchainFirst(f); n == len(some) {
				p.returnFrames(some[:])
				n = 0
			}
		}
	}
	p.returnFrames(some[:n])
}

// chainReaches reports whether the chain that begins with f has n bytes behind the first off.
func (p *Pool) chainReaches(f Frame, off, n int) bool {
	for n -= p.size - off; n > 0; n -= p.size {
		if p.next == nil || p.next[f] == NoFrame {
			return false
		}
		f = p.next[f]
	}
	return true
}
