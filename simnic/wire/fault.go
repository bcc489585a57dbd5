package wire

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// FaultStats counts what became of the frames of one direction. Every frame that was neither
// dropped, nor overflowed, nor lost arrived, the duplicated ones twice.
type FaultStats struct {
	Frames, Dropped, Duplicated, Reordered, Corrupted uint64

	Overflow uint64 // more than 8192 delayed at once
	Lost     uint64 // held back or delayed, and then not taken by the wire
}

// Faulty adds faults to both directions of a wire.
type Faulty struct {
	inner   Wire
	out, in *faultLine
}

var _ Wire = (*Faulty)(nil)

// WithFaults puts faults on w and owns it from then on. Unsegmented frames are
// cut before faults are drawn: one lost frame is one lost frame.
func WithFaults(w Wire, c FaultConfig) *Faulty {
	return &Faulty{inner: w, out: newFaultLine(c, 0x6f7574, w.Send),
		in: newFaultLine(c, 0x696e, nil)}
}

// Start begins reception through the faults.
func (f *Faulty) Start(recv func([]frame.Frame)) error {
	f.in.mu.Lock()
	if f.in.deliver != nil {
		f.in.mu.Unlock()
		return ErrStarted
	}
	f.in.deliver = func(frames []frame.Frame) (int, error) { recv(frames); return len(frames), nil }
	f.in.mu.Unlock()
	return f.inner.Start(func(frames []frame.Frame) { _, _ = f.in.passFrames(frames) })
}

// Send carries what the faults leave of the frames.
func (f *Faulty) Send(frames []frame.Frame) (int, error) { return f.out.passFrames(frames) }

// Offloads is nothing: faults happen to finished frames.
func (f *Faulty) Offloads() frame.Offload { return 0 }

// Stats returns the counts of both directions since the wire was made.
func (f *Faulty) Stats() (sent, received FaultStats) {
	return f.out.statsNow(), f.in.statsNow()
}

// Close closes the inner wire. Frames still held back or delayed are gone.
func (f *Faulty) Close() error {
	f.out.endLine()
	err := f.inner.Close()
	f.in.endLine()
	return err
}

// Limits of a fault line.
const (
	maxDelayed  = 8192
	maxHeldBack = 10 * time.Millisecond
	maxOvertake = 8 // later frames that pass a reordered one
)

// faultLine describes one direction. Frames it keeps are its own copies.
type faultLine struct {
	cfg FaultConfig
	// called without mu, so that directions cannot wait for each other
	deliver func([]frame.Frame) (int, error)
	timers  *callGuard // timer functions at work

	mu      sync.Mutex // covers what follows
	rng     *rand.Rand
	stats   FaultStats
	scratch []byte
	held    []heldFrame    // reordered, waiting to be overtaken
	flush   clock.Timer    // for held
	delayed []delayedFrame // in order of time
	release clock.Timer    // for delayed; set while one is due
	shutUp  bool
}

type heldFrame struct {
	frame     frame.Frame
	overtaken int // how many more frames pass it
}

type delayedFrame struct {
	frame frame.Frame
	due   time.Time
}

func newFaultLine(c FaultConfig, stream uint64,
	deliver func([]frame.Frame) (int, error)) *faultLine {
	return &faultLine{cfg: c, rng: rand.New(rand.NewPCG(c.Seed, stream)),
		deliver: deliver, timers: newCallGuard()}
}

func (l *faultLine) statsNow() FaultStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// outcome holds what leaves the line now, and which frame each came from.
type outcome struct {
	frames []frame.Frame
	from   []int
}

func (o *outcome) addFrame(f frame.Frame, from int) {
	o.frames, o.from = append(o.frames, f), append(o.from, from)
}

// passFrames decides what happens to each frame and delivers what is due. The result counts
// frames given, as Wire.Send has it.
func (l *faultLine) passFrames(frames []frame.Frame) (int, error) {
	l.mu.Lock()
	if l.shutUp {
		l.mu.Unlock()
		return 0, ErrClosed
	}
	o := outcome{frames: make([]frame.Frame, 0, len(frames)), from: make([]int, 0, len(frames))}
	for i, f := range frames {
		cut := f.GSO != frame.GSONone || f.NeedsCsum
		frame.Cut(f, &l.scratch, func(piece frame.Frame) {
			if cut {
				piece = cloneFrame(piece)
			}
			l.drawFaults(&o, piece, i)
		})
	}
	if l.cfg.Delay > 0 {
		l.delayFrames(o.frames)
		o.frames = nil
	}
	l.mu.Unlock()
	if len(o.frames) == 0 {
		return len(frames), nil
	}
	n, err := l.deliver(o.frames)
	if err != nil && n < len(o.from) {
		return o.from[n], err
	}
	return len(frames), nil
}

// drawFaults decides what happens to one frame. It draws the same numbers whatever
// happens, so that changing one probability leaves the other faults in place.
func (l *faultLine) drawFaults(o *outcome, f frame.Frame, from int) {
	drop, corrupt, hold, double := l.rng.Float64(), l.rng.Float64(),
		l.rng.Float64(), l.rng.Float64()
	bit, overtake := l.rng.Uint32(), 1+l.rng.IntN(maxOvertake)
	l.stats.Frames++
	if drop < l.cfg.Drop {
		l.stats.Dropped++
		return
	}
	if corrupt < l.cfg.Corrupt && len(f.Data) > 0 {
		l.stats.Corrupted++
		f = cloneFrame(f)
		at := int(bit>>3) % len(f.Data)
		f.Data[at] ^= 1 << (bit & 7)
	}
	if hold < l.cfg.Reorder {
		l.stats.Reordered++
		l.holdBack(cloneFrame(f), overtake)
		return
	}
	o.addFrame(f, from)
	if double < l.cfg.Duplicate {
		l.stats.Duplicated++
		o.addFrame(f, from)
	}
	l.overtaken(o, from)
}

func (l *faultLine) holdBack(f frame.Frame, overtake int) {
	l.held = append(l.held, heldFrame{f, overtake})
	if len(l.held) == 1 {
		l.flush = l.cfg.Clock.AfterFunc(maxHeldBack, l.flushHeld)
	}
}

// overtaken lets held frames go that enough others have passed.
func (l *faultLine) overtaken(o *outcome, from int) {
	if len(l.held) == 0 {
		return
	}
	for i := range l.held {
		if l.held[i].overtaken--; l.held[i].overtaken == 0 {
			o.addFrame(l.held[i].frame, from)
		}
	}
	l.held = slices.DeleteFunc(l.held, func(h heldFrame) bool { return h.overtaken == 0 })
	if len(l.held) == 0 {
		l.flush.Stop()
	}
}

// flushHeld runs on a timer when too few frames came to overtake.
func (l *faultLine) flushHeld() {
	if !l.timers.enterCall() {
		return
	}
	defer l.timers.leaveCall()
	l.mu.Lock()
	var frames []frame.Frame
	for _, h := range l.held {
		frames = append(frames, h.frame)
	}
	l.held = nil
	if l.cfg.Delay > 0 {
		l.delayFrames(frames)
		frames = nil
	}
	l.mu.Unlock()
	l.deliverLate(frames)
}

// delayFrames queues copies of frames.
func (l *faultLine) delayFrames(frames []frame.Frame) {
	due := l.cfg.Clock.Now().Add(l.cfg.Delay)
	for _, f := range frames {
		if len(l.delayed) >= maxDelayed {
			l.stats.Overflow++
			continue
		}
		l.delayed = append(l.delayed, delayedFrame{cloneFrame(f), due})
	}
	if l.release == nil && len(l.delayed) > 0 && !l.shutUp {
		l.release = l.cfg.Clock.AfterFunc(l.cfg.Delay, l.releaseDelayed)
	}
}

// releaseDelayed runs on a timer, never twice at once, or order would be lost.
func (l *faultLine) releaseDelayed() {
	if !l.timers.enterCall() {
		return
	}
	defer l.timers.leaveCall()
	l.mu.Lock()
	now, frames := l.cfg.Clock.Now(), []frame.Frame(nil)
	for len(l.delayed) > 0 && !l.delayed[0].due.After(now) {
		frames = append(frames, l.delayed[0].frame)
		l.delayed = l.delayed[1:]
	}
	l.mu.Unlock()
	l.deliverLate(frames)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release = nil
	if len(l.delayed) > 0 && !l.shutUp {
		l.release = l.cfg.Clock.AfterFunc(l.cfg.Clock.Until(l.delayed[0].due), l.releaseDelayed)
	}
}

// deliverLate delivers frames whose sender was told already that they were carried.
func (l *faultLine) deliverLate(frames []frame.Frame) {
	if len(frames) == 0 {
		return
	}
	n, err := l.deliver(frames)
	if err == nil {
		return
	}
	l.mu.Lock()
	l.stats.Lost += uint64(len(frames) - n)
	l.mu.Unlock()
}

// endLine stops the line and waits for its timers.
func (l *faultLine) endLine() {
	l.mu.Lock()
	l.shutUp = true
	l.held, l.delayed = nil, nil
	for _, t := range []clock.Timer{l.flush, l.release} {
		if t != nil {
			t.Stop()
		}
	}
	l.mu.Unlock()
	l.timers.closeAndWait()
}

// cloneFrame copies a frame with its data.
func cloneFrame(f frame.Frame) frame.Frame {
	f.Data = slices.Clone(f.Data)
	return f
}
