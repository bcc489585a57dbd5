package wire

import (
	"sync"
	"sync/atomic"
)

// gate lets calls through until it is closed, and closing waits for those
// inside. It is not a lock: calls nest, and run side by side.
type gate struct {
	state atomic.Int64 // calls inside, and the bit gateClosed
	once  sync.Once
	empty chan struct{} // closed when the gate is, and the last call has left
}

const gateClosed = 1 << 40

func newGate() *gate { return &gate{empty: make(chan struct{})} }

// enter reports whether the call may go on; it must leave then.
func (g *gate) enter() bool {
	if g.state.Add(1) < gateClosed {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.state.Add(-1) == gateClosed {
		g.once.Do(func() { close(g.empty) })
	}
}

// shut closes the gate and returns when no call is inside. A call inside that
// shuts its own gate waits for itself, for ever.
func (g *gate) shut() {
	if g.state.Or(gateClosed) == 0 {
		g.once.Do(func() { close(g.empty) })
	}
	<-g.empty
}

func (g *gate) closed() bool { return g.state.Load() >= gateClosed }
