package wire

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// frameLog is a receiver that keeps copies.
type frameLog struct {
	mu     sync.Mutex
	frames []frame.Frame
	more   chan struct{}
}

func newFrameLog() *frameLog { return &frameLog{more: make(chan struct{}, 1<<16)} }

func (l *frameLog) recv(frames []frame.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range frames {
		l.frames = append(l.frames, cloneFrame(f))
		l.more <- struct{}{}
	}
}

// wait blocks until n frames have come, and returns all.
func (l *frameLog) wait(n int) []frame.Frame {
	for range n {
		<-l.more
	}
	return l.all()
}

func (l *frameLog) all() []frame.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]frame.Frame(nil), l.frames...)
}

func numbered(n int) frame.Frame {
	return frame.Frame{Data: fmt.Appendf(make([]byte, 14),
		"frame %d, and something behind it to make it long enough", n)}
}

func TestPairCarriesBothWays(t *testing.T) {
	a, b := Pair()
	defer a.Close()
	defer b.Close()
	var atA, atB = newFrameLog(), newFrameLog()
	if err := errors.Join(a.Start(atA.recv), b.Start(atB.recv)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if n, err := a.Send([]frame.Frame{numbered(i), numbered(i + 10)}); n != 2 || err != nil {
			t.Fatalf("send: %d, %v", n, err)
		}
		if n, err := b.Send([]frame.Frame{numbered(i + 100)}); n != 1 || err != nil {
			t.Fatalf("send: %d, %v", n, err)
		}
	}
	for i, want := range []int{0, 10, 1, 11, 2, 12} {
		if got := atB.all()[i].Data; !bytes.Equal(got, numbered(want).Data) {
			t.Errorf("frame %d at the far end is %q", i, got)
		}
	}
	if got := len(atA.all()); got != 3 {
		t.Errorf("%d frames came back, want 3", got)
	}
}

func TestPairStates(t *testing.T) {
	a, b := PairCarrying(frame.OffloadCsum | frame.OffloadTSO4)
	if got := a.Offloads(); got != frame.OffloadCsum|frame.OffloadTSO4 {
		t.Errorf("carries %v", got)
	}
	if n, err := a.Send([]frame.Frame{numbered(1)}); n != 0 || !errors.Is(err, ErrDisconnected) {
		t.Errorf("send to nobody: %d, %v", n, err)
	}
	recv := func([]frame.Frame) {}
	if err := b.Start(recv); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(recv); !errors.Is(err, ErrStarted) {
		t.Errorf("second start: %v", err)
	}
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Errorf("close twice: %v", err)
	}
	if n, err := a.Send([]frame.Frame{numbered(1)}); n != 0 || !errors.Is(err, ErrDisconnected) {
		t.Errorf("send to a closed end: %d, %v", n, err)
	}
	if n, err := b.Send([]frame.Frame{numbered(1)}); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("send from a closed end: %d, %v", n, err)
	}
	if err := b.Start(recv); !errors.Is(err, ErrClosed) {
		t.Errorf("start of a closed end: %v", err)
	}
}

// Both ends send at once, receivers answer from inside, and the ends are closed
// in the middle of it: nothing hangs, and nothing is received after Close.
func TestPairUnderLoadAndClose(t *testing.T) {
	for range 50 {
		a, b := Pair()
		var closed atomic.Bool
		var received atomic.Int64
		answer := func(w Wire) func([]frame.Frame) {
			return func(frames []frame.Frame) {
				if closed.Load() {
					t.Error("received after Close")
				}
				received.Add(int64(len(frames)))
				if len(frames) == 2 {
					_, _ = w.Send(frames[:1])
				}
			}
		}
		if err := errors.Join(a.Start(answer(a)), b.Start(answer(b))); err != nil {
			t.Fatal(err)
		}
		var senders sync.WaitGroup
		for _, w := range []Wire{a, b, a, b} {
			senders.Go(func() {
				for {
					if _, err := w.Send([]frame.Frame{numbered(1), numbered(2)}); err != nil {
						return
					}
				}
			})
		}
		for received.Load() < 100 {
			runtime.Gosched()
		}
		var closers sync.WaitGroup
		for _, w := range []Wire{a, b, a} {
			closers.Go(func() { _ = w.Close() })
		}
		closers.Wait()
		closed.Store(true)
		senders.Wait()
	}
}

func TestPairSendDoesNotAllocate(t *testing.T) {
	a, b := Pair()
	defer a.Close()
	defer b.Close()
	if err := b.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	frames := []frame.Frame{numbered(1)}
	if n := testing.AllocsPerRun(100, func() { _, _ = a.Send(frames) }); n != 0 {
		t.Errorf("%v allocations per Send", n)
	}
}

// udpFrame is a finished frame of 5 bytes of payload behind tags VLAN tags.
func udpFrame(t *testing.T, tags int) frame.Frame {
	t.Helper()
	hdr, l3, l4 := simtest.Header(false, true, tags, 5)
	f := frame.Frame{
		Data: append(hdr, "hello"...), NeedsCsum: true, CsumStart: uint16(l4), CsumOffset: 6,
		GSO: frame.GSOUDP, HdrLen: uint16(len(hdr)), MSS: 100,
	}
	var buf []byte
	frame.Cut(f, &buf, func(s frame.Frame) { f = cloneFrame(s) })
	simtest.CheckFrame(t, f.Data, l3, l4, true)
	return f
}
