package simnic

import "sync"

// pool keeps scratch memory between uses. Unlike sync.Pool it never loses any,
// so that a steady stream of frames allocates nothing.
type pool[T any] struct {
	mu   sync.Mutex
	free []*T
}

func (p *pool[T]) get() *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		t := p.free[n-1]
		p.free = p.free[:n-1]
		return t
	}
	return new(T)
}

func (p *pool[T]) put(t *T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, t)
}
