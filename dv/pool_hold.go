package dv

import (
	"fmt"
	"sync/atomic"
)

// share makes the frames of a pool nobody has taken from yet ones that several
// can hold: each then goes back when the last holder has given it back.
func (p *Pool) share() { p.shares = make([]atomic.Int32, p.count) }

// drop ends n holds on frame f, and reports whether they were the last.
func (p *Pool) drop(f Frame, n int32) bool {
	if p.shares == nil {
		return true
	}
	if !p.valid(f) {
		panic(fmt.Sprintf("dv: frame %d given back, the pool has %d", f, p.count))
	}
	left := p.shares[f].Add(-n)
	if left < 0 {
		panic("dv: a frame was given back more often than it was handed out")
	}
	return left == 0
}

// back ends one hold on each frame of src, which is used as scratch memory.
func (p *Pool) back(src []Frame) {
	if p.next != nil {
		p.backChains(src)
		return
	}
	free := src[:0]
	for _, f := range src {
		if p.drop(f, 1) {
			free = append(free, f)
		}
	}
	p.put(free)
}

// hold makes the taker of frames of a shared pool their one holder.
func (p *Pool) hold(frames ...Frame) {
	if p.shares == nil {
		return
	}
	for _, f := range frames {
		p.shares[f].Store(1)
	}
}

// chain makes the frames of a pool nobody has taken from yet ones that can be
// linked: the holder of the first of a chain holds all of it.
func (p *Pool) chain() {
	p.next = make([]Frame, p.count)
	for i := range p.next {
		p.next[i] = NoFrame
	}
}

// unchain takes f from the head of its chain and returns the rest: NoFrame if it
// was alone.
func (p *Pool) unchain(f Frame) Frame {
	if !p.valid(f) {
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
			if f = p.unchain(f); n == len(some) {
				p.put(some[:])
				n = 0
			}
		}
	}
	p.put(some[:n])
}

// reaches reports whether the chain that begins with f has n bytes behind the
// first off.
func (p *Pool) reaches(f Frame, off, n int) bool {
	for n -= p.size - off; n > 0; n -= p.size {
		if p.next == nil || p.next[f] == NoFrame {
			return false
		}
		f = p.next[f]
	}
	return true
}
