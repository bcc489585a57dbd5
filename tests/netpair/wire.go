package netpair

import (
	"math/rand/v2"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Faults are what happens to frames on a cable, in each direction. The zero value is a perfect
// cable.
type Faults struct {
	Loss      float64 // probability that a frame vanishes
	Duplicate float64 // probability that it arrives twice
	// probability that it arrives after the next one, or 10 ms later if there is none
	Reorder float64
	// probability that one of its bits flips; ARP, which has no checksum, then vanishes
	Corrupt float64
	Delay   time.Duration
	MTU     int    // default 1500
	Seed    uint64 // of the random numbers

	// Tap, if set, sees every frame before anything happens to it, and may say that it is to
	// vanish. end is 0 for frames of the first port. It is called from the sender's goroutines.
	Tap func(end int, frame []byte) (drop bool)
}

// heldTime is how long a frame waits to be overtaken.
const heldTime = 10 * time.Millisecond

// wire is one direction of a cable.
type wire struct {
	faults Faults
	end    int

	mu     sync.Mutex
	rand   *rand.Rand // guarded by mu
	held   []byte     // a frame that waits for the next one to overtake it; guarded by mu
	turn   int        // number of frames that were held; guarded by mu
	closed bool       // guarded by mu
}

func newWire(f Faults, end int) *wire {
	return &wire{faults: f, end: end, rand: rand.New(rand.NewPCG(f.Seed, uint64(end)))}
}

// send passes frame, which becomes the wire's, to arrive, now or later, once, twice or never.
func (w *wire) send(frame []byte, arrive func([]byte)) {
	if w.faults.Tap != nil && w.faults.Tap(w.end, frame) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.happens(w.faults.Loss) {
		return
	}
	if w.happens(w.faults.Corrupt) {
		if isARP(frame) { // else a neighbour is at a wrong address for a minute
			return
		}
		frame[w.rand.IntN(len(frame))] ^= 1 << w.rand.IntN(8)
	}
	deliver := arrive
	if w.faults.Delay > 0 {
		deliver = func(f []byte) { time.AfterFunc(w.faults.Delay, func() { arrive(f) }) }
	}
	if w.held == nil && w.happens(w.faults.Reorder) {
		w.hold(frame, deliver)
		return
	}
	deliver(frame)
	if w.happens(w.faults.Duplicate) {
		deliver(append([]byte(nil), frame...))
	}
	w.letGo(deliver)
}

// hold keeps a frame back for a while. It is called with mu held.
func (w *wire) hold(frame []byte, deliver func([]byte)) {
	w.held = frame
	w.turn++
	turn := w.turn
	time.AfterFunc(heldTime, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.turn == turn && !w.closed {
			w.letGo(deliver)
		}
	})
}

// letGo delivers the frame that was kept back, if any. It is called with mu held.
func (w *wire) letGo(deliver func([]byte)) {
	if w.held != nil {
		deliver(w.held)
		w.held = nil
	}
}

// isARP recognizes an ARP frame.
func isARP(frame []byte) bool {
	return len(frame) >= header.EthernetMinimumSize &&
		header.Ethernet(frame).Type() == header.ARPProtocolNumber
}

// happens is called with mu held.
func (w *wire) happens(p float64) bool { return p > 0 && w.rand.Float64() < p }

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}
