package wire

import (
	"sync"
	"sync/atomic"
)

// callGuard admits calls until it is closed, and closing waits for those
// inside. It is not a lock: calls nest, and run side by side.
type callGuard struct {
	state atomic.Int64 // calls inside, and the bit guardClosed
	once  sync.Once
	empty chan struct{} // closed when the guard is, and the last call has left
}

const guardClosed = 1 << 40

func newCallGuard() *callGuard { return &callGuard{empty: make(chan struct{})} }

// enterCall reports whether the call may go on; it must leave then.
func (g *callGuard) enterCall() bool {
	if g.state.Add(1) < guardClosed {
		return true
	}
	g.leaveCall()
	return false
}

func (g *callGuard) leaveCall() {
	if g.state.Add(-1) == guardClosed {
		g.once.Do(func() { close(g.empty) })
	}
}

// closeAndWait closes the guard and returns when no call is inside. A call inside that
// closes its own guard waits for itself, for ever.
func (g *callGuard) closeAndWait() {
	if g.state.Or(guardClosed) == 0 {
		g.once.Do(func() { close(g.empty) })
	}
	<-g.empty
}

func (g *callGuard) isClosed() bool { return g.state.Load() >= guardClosed }
