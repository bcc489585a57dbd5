package dv

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// chained links n frames of the pool and returns the first.
func chained(t *testing.T, pool *Pool, n int) Frame {
	t.Helper()
	head := NoFrame
	for range n {
		f, ok := pool.Get()
		if !ok {
			t.Fatal("the pool is empty")
		}
		pool.next[f] = head
		head = f
	}
	return head
}

// A frame in three buffers is one descriptor with three pointers, wherever the
// ring ends, and its buffers come back together when it is sent.
func TestPostChainBytes(t *testing.T) {
	for _, c := range []struct {
		name   string
		inline int
		pc     uint32
		want   string
	}{
		{"pointers alone", 0, 0,
			"00%04x0a 00012305 00000008 00000000 00000000 80000000 00000000 00000000"},
		{"headers inline", 18, 0,
			"00%04x0a 00012306 00000008 00000000 00000000 80000000 00000000 00121011 12131415 " +
				"16171819 1a1b1c1d 1e1f2021"},
		{"over the end of the ring", 0, 63,
			"00%04x0a 00012305 00000008 00000000 00000000 80000000 00000000 00000000"},
		{"counter about to wrap", 0, 1<<16 - 1,
			"00%04x0a 00012305 00000008 00000000 00000000 80000000 00000000 00000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			limits := defaultLimits
			limits.minInline, limits.frame = c.inline, 9018
			r := newTxRig(t, 64, 128<<10, limits).at(c.pc)
			r.pool.makeChainable()
			f := chained(t, r.pool, 3)
			for i := range 100 {
				r.pool.Bytes(f)[i] = byte(i)
			}
			if err := r.q.PostFrame(f, 16, 5000, TxL4Csum); err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(fmt.Sprintf(c.want, uint16(c.pc)), " ", "")
			for i, piece := range []struct{ at, n int }{{16 + c.inline, 2032 - c.inline}, {0, 2048},
				{0, 920}} {
				g := f
				for range i {
					g = r.pool.next[g]
				}
				want += fmt.Sprintf("%08x00007700%016x", piece.n,
					r.pool.frameAddr(g)+uint64(piece.at))
			}
			r.q.Flush()
			if got := hex.EncodeToString(r.wqe(c.pc, len(want)/2)); got != want {
				t.Errorf("descriptor\n%s, want\n%s", got, want)
			}
			if free := r.pool.Free(); free != 61 {
				t.Errorf("%d frames free while it is sent", free)
			}
			r.nic.put(sent(uint16(c.pc)))
			if n := r.q.Reclaim(); n != 1 || r.pool.Free() != 64 || r.pool.next[f] != NoFrame {
				t.Errorf("%d reclaimed, %d frames free, still linked to %d", n,
					r.pool.Free(), r.pool.next[f])
			}
		})
	}
}

// What cannot be is refused, stays the caller's, and leaves the ring alone.
func TestPostChainRefusals(t *testing.T) {
	for _, c := range []struct {
		name                  string
		inline, parts, off, n int
	}{
		{"longer than its buffers", 0, 2, 0, 4097},
		{"a single buffer", 0, 1, 0, 2049},
		{"longer than the port takes", 0, 5, 0, 9019},
		{"headers beyond the first buffer", 78, 3, 2048 - 78, 3000},
		{"offset beyond the buffer", 0, 3, 2048, 2100},
	} {
		limits := defaultLimits
		limits.minInline, limits.frame = c.inline, 9018
		r := newTxRig(t, 64, 128<<10, limits)
		r.pool.makeChainable()
		f := chained(t, r.pool, c.parts)
		if err := r.q.PostFrame(f, c.off, c.n, 0); !errors.Is(err, ErrFrameSize) || r.q.pc != 0 ||
			r.pool.Free() != 64-c.parts {
			t.Errorf("%s: %v, ring at %d, %d frames free", c.name, err, r.q.pc, r.pool.Free())
		}
	}
	r := newTxRig(t, 64, 128<<10, txLimits{frame: 9018})
	r.pool.makeChainable()
	r.q.pc = 61 // three blocks are left: enough for one descriptor of two
	for i, want := range []error{nil, ErrRingFull} {
		if err := r.q.PostFrame(chained(t, r.pool, 3), 0, 5000, 0); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
}

func TestPostChainAllocations(t *testing.T) {
	r := newTxRig(t, 64, 128<<10, txLimits{frame: 9018})
	r.pool.makeChainable()
	done := sent(0)
	if n := testing.AllocsPerRun(300, func() {
		f := chained(t, r.pool, 4)
		if err := r.q.PostFrame(f, 0, 8000, 0); err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint16(done[0x3c:], uint16(r.q.last))
		r.bells = r.bells[:0]
		r.q.Flush()
		r.nic.put(done)
		r.q.Reclaim()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if r.pool.Free() != 64 {
		t.Errorf("%d frames free", r.pool.Free())
	}
}
