package dv

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// flaming is a queue whose register takes copies, which it keeps with their
// offsets.
func flaming(t *testing.T, limits txLimits) (r *txRig, copies *[][]byte, at *[]int) {
	r = newTxRig(t, 64, 128<<10, limits)
	copies, at = new([][]byte), new([]int)
	r.q.page = &uverbs.Page{
		Trap: func(off int, v uint64) { r.bells = append(r.bells, v) },
		TrapCopy: func(off int, b []byte) {
			*copies,
				*at = append(*copies, bytes.Clone(b)), append(*at, off)
		},
	}
	r.q.blueFlame.size = 256
	return r, copies, at
}

// A descriptor that is flushed alone goes into the register as it is in the ring,
// the halves taking turns; what is longer, or several, rings as ever. The
// record is told before either.
func TestBlueFlameBytes(t *testing.T) {
	r, copies, at := flaming(t, txLimits{frame: 1518, inline: 900, mpw: 60})
	post := func(n int) {
		b := [1][]byte{bytes.Repeat([]byte{byte(n)}, n)}
		if err := r.q.Post(&TxPacket{Bufs: b[:]}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name   string
		frames []int
		blocks int // of the copy; 0: none
		off    int
	}{
		{"short", []int{60}, 2, 0x800},
		{"shorter than the room", []int{150}, 3, 0x900},
		{"filling the half", []int{220}, 4, 0x800},
		{"too long", []int{221}, 0, 0},
		{"pointer", []int{1000}, 1, 0x900},
		{"several in one descriptor", []int{60, 60}, 3, 0x800},
		{"several in a long one", []int{100, 100, 100}, 0, 0},
		{"after a doorbell", []int{61}, 2, 0x900},
	} {
		bells, n := len(r.bells), len(*copies)
		start := r.q.pc
		for _, f := range step.frames {
			post(f)
		}
		r.q.Flush()
		if step.blocks == 0 {
			if len(r.bells) != bells+1 || len(*copies) != n {
				t.Errorf("%s: %d doorbells, %d copies", step.name,
					len(r.bells)-bells, len(*copies)-n)
			}
			continue
		}
		if len(r.bells) != bells || len(*copies) != n+1 {
			t.Fatalf("%s: %d doorbells, %d copies", step.name, len(r.bells)-bells, len(*copies)-n)
		}
		if got := (*copies)[n]; (*at)[n] != step.off ||
			!bytes.Equal(got, r.wqe(start, step.blocks*64)) {
			t.Errorf("%s: at %#x\n%x", step.name, (*at)[n], got)
		}
	}
	r.q.Flush() // nothing new
	r.q.count.showDone()
	if s := r.q.Stats(); s.BlueFlames != 6 || s.Doorbells != 8 {
		t.Errorf("counted %+v", s)
	}
}

// Two descriptors, one that the ring's end cuts, or a register without room are
// rung for; after a reset the first half is next again.
func TestBlueFlameNot(t *testing.T) {
	short := TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	for _, c := range []struct {
		name  string
		build func(r *txRig)
		want  int
	}{
		{"alone", func(*txRig) {}, 1},
		{"behind another", func(r *txRig) { r.q.Post(&short) }, 0},
		{"over the end of the ring", func(r *txRig) { r.at(63) }, 0},
		{"up to the end of the ring", func(r *txRig) { r.at(62) }, 1},
		{"counter about to wrap", func(r *txRig) { r.at(1<<16 - 2) }, 1},
		{"register without room", func(r *txRig) { r.q.blueFlame.size = 0 }, 0},
		{"small register", func(r *txRig) { r.q.blueFlame.size = 64 }, 0},
	} {
		r, copies, _ := flaming(t, txLimits{frame: 1518})
		c.build(r)
		r.q.Post(&short)
		r.q.Flush()
		if len(*copies) != c.want || len(r.bells) != 1-c.want {
			t.Errorf("%s: %d copies, %d doorbells", c.name, len(*copies), len(r.bells))
		}
	}
}
