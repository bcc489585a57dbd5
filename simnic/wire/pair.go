package wire

import (
	"errors"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Errors of wires.
var (
	// ErrClosed says what a wire returns after its Close.
	ErrClosed = errors.New("wire: the wire is closed")
	// ErrDisconnected means that no receiver is at the other end: frames are lost.
	ErrDisconnected = errors.New("wire: nothing is connected to the other end of the wire")
	// ErrStarted says what a second Start returns.
	ErrStarted = errors.New("wire: the wire is started already")
)

// Pair returns the two ends of a cable. A frame is handed to the other end's
// receiver on the sender's goroutine, before Send returns: no queue, no
// goroutine, nothing to fill up, and both ends may send at once. It carries
// what a real cable does: finished frames no longer than the port's.
//
// An end may not be closed from inside its own receiver.
func Pair() (Wire, Wire) { return PairCarrying(0) }

// PairCarrying is Pair for frames that still have work to be done on them, as
// between two NICs that trust each other not to need it.
func PairCarrying(o frame.Offload) (Wire, Wire) {
	a, b := &pairEnd{offloads: o, in: newCallGuard()}, &pairEnd{offloads: o, in: newCallGuard()}
	a.peer, b.peer = b, a
	return a, b
}

// pairEnd describes one end. in counts the receptions under way at this end.
type pairEnd struct {
	peer     *pairEnd
	offloads frame.Offload
	recv     atomic.Pointer[func([]frame.Frame)]
	in       *callGuard
}

func (p *pairEnd) Start(recv func([]frame.Frame)) error {
	if !p.in.enterCall() {
		return ErrClosed
	}
	defer p.in.leaveCall()
	if !p.recv.CompareAndSwap(nil, &recv) {
		return ErrStarted
	}
	return nil
}

func (p *pairEnd) Send(frames []frame.Frame) (int, error) {
	if p.in.isClosed() {
		return 0, ErrClosed
	}
	recv := p.peer.recv.Load()
	if recv == nil || !p.peer.in.enterCall() {
		return 0, ErrDisconnected
	}
	defer p.peer.in.leaveCall()
	(*recv)(frames)
	return len(frames), nil
}

func (p *pairEnd) Offloads() frame.Offload { return p.offloads }

func (p *pairEnd) Close() error {
	p.in.closeAndWait()
	return nil
}
