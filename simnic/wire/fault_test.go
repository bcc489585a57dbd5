package wire

import (
	"bytes"
	"errors"
	"math"
	"math/bits"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

func TestParseFaults(t *testing.T) {
	got, err := ParseFaults("drop=1%,dup=0.5%,reorder=2%,corrupt=0.001,delay=1ms,seed=7")
	want := FaultConfig{Drop: 0.01, Duplicate: 0.005, Reorder: 0.02, Corrupt: 0.001,
		Delay: time.Millisecond, Seed: 7}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if s := want.String(); s != "drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=1ms,seed=7" {
		t.Errorf("text is %q", s)
	}
	if got, err := ParseFaults(""); err != nil || got != (FaultConfig{}) || got.String() != "" {
		t.Errorf("empty text: %+v, %v", got, err)
	}
	for _, bad := range []string{"drop", "drop=", "drop=101%", "drop=-1%", "drop=2", "drop=NaN",
		"drop=1%,drop=1%", "delay=5", "delay=-1s", "seed=-1", "loss=1%", ",", "drop=1%,"} {
		if c, err := ParseFaults(bad); err == nil {
			t.Errorf("%q was taken as %+v", bad, c)
		}
	}
}

func FuzzParseFaults(f *testing.F) {
	f.Add("drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=1ms,seed=7")
	f.Add("drop=0.333333333333,seed=0x10")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseFaults(s)
		if err != nil {
			return
		}
		again, err := ParseFaults(c.String())
		if err != nil || again != c {
			t.Errorf("%q gives %+v, its text %q gives %+v, %v", s, c, c.String(), again, err)
		}
	})
}

// faultRun sends n numbered frames through faults and returns what arrived.
func faultRun(t *testing.T, c FaultConfig, n int) ([]frame.Frame, FaultStats) {
	t.Helper()
	a, b := Pair()
	w := WithFaults(a, c)
	got := newFrameLog()
	if err := b.Start(got.recv); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if k, err := w.Send([]frame.Frame{numbered(i)}); k != 1 || err != nil {
			t.Fatalf("send: %d, %v", k, err)
		}
	}
	time.Sleep(time.Second) // of the bubble: held and delayed frames come out
	sent, received := w.Stats()
	if received != (FaultStats{}) {
		t.Errorf("the other direction counted %+v", received)
	}
	if err := errors.Join(w.Close(), w.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	return got.all(), sent
}

func TestFaults(t *testing.T) {
	const n = 20000
	seed := simtest.Seed(t)
	for _, tt := range []struct {
		name string
		c    FaultConfig
		stat func(FaultStats) uint64
		p    float64
	}{
		{"none", FaultConfig{}, func(s FaultStats) uint64 {
			return s.Dropped + s.Duplicated +
				s.Reordered + s.Corrupted
		}, 0},
		{"drop", FaultConfig{Drop: 0.1}, func(s FaultStats) uint64 { return s.Dropped }, 0.1},
		{"duplicate", FaultConfig{Duplicate: 0.1},
			func(s FaultStats) uint64 { return s.Duplicated }, 0.1},
		{"reorder", FaultConfig{Reorder: 0.1}, func(s FaultStats) uint64 { return s.Reordered },
			0.1},
		{"corrupt", FaultConfig{Corrupt: 0.1}, func(s FaultStats) uint64 { return s.Corrupted },
			0.1},
		{"all and a delay", FaultConfig{Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1,
			Delay: time.Millisecond}, func(s FaultStats) uint64 { return s.Dropped }, 0.1},
		{"drop all", FaultConfig{Drop: 1}, func(s FaultStats) uint64 { return s.Dropped }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.c.Seed = seed
				frames, s := faultRun(t, tt.c, n)
				if got := float64(tt.stat(s)) / n; math.Abs(got-tt.p) > 0.02 {
					t.Errorf("happened to %v of the frames, not %v", got, tt.p)
				}
				if want := s.Frames - s.Dropped +
					s.Duplicated - s.Overflow - s.Lost; s.Frames != n ||
					uint64(len(frames)) != want {
					t.Errorf("%d frames arrived, counted %d of %+v", len(frames), want, s)
				}
				checkFates(t, frames, s)
				again, s2 := faultRun(t, tt.c, n)
				if s != s2 || len(again) != len(frames) {
					t.Fatalf("the same seed gave %+v and %+v", s, s2)
				}
				for i := range again {
					if !bytes.Equal(again[i].Data, frames[i].Data) {
						t.Fatalf("frame %d differs with the same seed", i)
					}
				}
			})
		})
	}
}

// checkFates compares what arrived with what was counted.
func checkFates(t *testing.T, frames []frame.Frame, s FaultStats) {
	t.Helper()
	index := map[string]int{}
	for i := range int(s.Frames) {
		index[string(numbered(i).Data)] = i
	}
	var corrupt, late uint64
	newest := -1
	for at, f := range frames {
		i, known := index[string(f.Data)]
		switch {
		case !known:
			corrupt++
		case i < newest:
			late++
		default:
			newest = i
		}
		if onlyReorder := s.Reordered > 0 && s.Dropped+s.Duplicated+s.Corrupted == 0; onlyReorder &&
			i+maxOvertake*4 < at {
			t.Fatalf("frame %d came as number %d", i, at)
		}
	}
	// A flipped digit makes another frame's text, and a copy doubles a flip.
	if s.Corrupted == 0 && corrupt != 0 || s.Corrupted != 0 && corrupt == 0 {
		t.Errorf("%d corrupt frames arrived, %d counted", corrupt, s.Corrupted)
	}
	if s.Corrupted == 0 && late > s.Reordered || s.Reordered > 0 && late == 0 {
		t.Errorf("%d frames came late, %d counted", late, s.Reordered)
	}
}

func TestCorruptFlipsOneBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := numbered(0)
		frames, _ := faultRun(t, FaultConfig{Corrupt: 1, Seed: 3}, 1)
		flipped := 0
		for i := range f.Data {
			flipped += bits.OnesCount8(f.Data[i] ^ frames[0].Data[i])
		}
		if flipped != 1 || !bytes.Equal(f.Data, numbered(0).Data) {
			t.Errorf("%d bits flipped; sender's frame %q", flipped, f.Data)
		}
	})
}

func TestDelayKeepsOrderAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair()
		w := WithFaults(b, FaultConfig{Delay: 30 * time.Millisecond})
		var at []time.Duration
		start := time.Now()
		got := newFrameLog()
		err := w.Start(func(f []frame.Frame) {
			for range f {
				at = append(at, time.Since(start))
			}
			got.recv(f)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Start(got.recv); !errors.Is(err, ErrStarted) {
			t.Errorf("second start: %v", err)
		}
		for i := range 5 {
			_, _ = a.Send([]frame.Frame{numbered(i)})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		for i, f := range got.wait(5) {
			if want := time.Duration(i*10+30) * time.Millisecond; at[i] != want ||
				!bytes.Equal(f.Data, numbered(i).Data) {
				t.Errorf("frame %d: %q after %v, want %v", i, f.Data, at[i], want)
			}
		}
		_ = w.Close()
	})
}

// The receiver takes its time, and more frames fall due meanwhile: they wait
// for their turn.
func TestDelayKeepsOrderUnderLoad(t *testing.T) {
	a, b := Pair()
	w := WithFaults(b, FaultConfig{Delay: 100 * time.Microsecond})
	defer w.Close()
	got := newFrameLog()
	err := w.Start(func(frames []frame.Frame) {
		for range 100 {
			runtime.Gosched()
		}
		got.recv(frames)
	})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3000
	for i := range n {
		_, _ = a.Send([]frame.Frame{numbered(i)})
		runtime.Gosched()
	}
	for i, f := range got.wait(n) {
		if !bytes.Equal(f.Data, numbered(i).Data) {
			t.Fatalf("frame %d is %q", i, f.Data)
		}
	}
}

func TestDelayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frames, s := faultRun(t, FaultConfig{Delay: time.Hour}, maxDelayed+10)
		if len(frames) != 0 || s.Overflow != 10 {
			t.Errorf("%d frames, %+v", len(frames), s)
		}
	})
}

// One lost segment is one lost segment, not the 64 KiB it was part of.
func TestFaultsCutFirst(t *testing.T) {
	hdr, l3, l4 := simtest.Header(false, false, 0, 1000)
	f := frame.Frame{Data: append(hdr, make([]byte, 1000)...), NeedsCsum: true,
		CsumStart: uint16(l4), CsumOffset: 16, GSO: frame.GSOTCPv4,
		HdrLen: uint16(len(hdr)), MSS: 10}
	a, b := Pair()
	w := WithFaults(a, FaultConfig{Drop: 0.5, Seed: simtest.Seed(t)})
	defer w.Close()
	got := newFrameLog()
	if err := b.Start(got.recv); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Send([]frame.Frame{f}); n != 1 || err != nil {
		t.Fatalf("send: %d, %v", n, err)
	}
	if n := len(got.all()); n < 20 || n > 80 {
		t.Errorf("%d of 100 segments arrived", n)
	}
	for _, s := range got.all() {
		simtest.CheckFrame(t, s.Data, l3, l4, false)
	}
}

func TestFaultySendReportsErrors(t *testing.T) {
	a, b := Pair()
	w := WithFaults(a, FaultConfig{})
	if n, err := w.Send([]frame.Frame{numbered(0)}); n != 0 || !errors.Is(err, ErrDisconnected) {
		t.Errorf("to nobody: %d, %v", n, err)
	}
	if err := errors.Join(w.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	if n, err := w.Send([]frame.Frame{numbered(0)}); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %d, %v", n, err)
	}
}
