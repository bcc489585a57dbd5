package dv

import "fmt"

// chain makes the frames of a pool nobody has taken from yet ones that can be
// linked: whoever holds the first of a chain holds all of it.
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
