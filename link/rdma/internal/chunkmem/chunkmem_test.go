package chunkmem

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
)

const testBytes = 16 << 20

func memory(t testing.TB) []byte {
	t.Helper()
	b, err := Memory(testBytes, testBytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// inside says whether the bytes of a view lie in the arena.
func inside(v *buffer.View) bool {
	_, ok := process.arena.Load().mem.Find(v.AsSlice())
	return ok
}

// views makes n views of the largest chunks.
func views(n int) []*buffer.View {
	all := make([]*buffer.View, n)
	for i := range all {
		all[i] = buffer.NewViewSize(buffer.MaxChunkSize)
	}
	return all
}

// TestPieces: netstack's largest buffers lie in the arena until that is full, and on the heap then.
// All pieces come back, and what the collector finds to be lost, too.
func TestPieces(t *testing.T) {
	if b := memory(t); len(b) != testBytes {
		t.Fatalf("%d bytes", len(b))
	}
	collected(t, 0)
	made := Used().Made
	all := views(Used().Pieces + 10)
	there := 0
	for _, v := range all {
		if inside(v) {
			there++
		}
	}
	s := Used()
	if there != s.Pieces || s.Used != s.Pieces || s.Missed < 10 {
		t.Errorf("%d of %d buffers in the arena: %+v", there, len(all), s)
	}
	if !Poisoned && s.Made-made != uint64(there) {
		t.Errorf("%d chunks made, want %d", s.Made-made, there)
	}
	for i, v := range all {
		if i%2 == 0 { // else lost
			v.Release()
		}
	}
	clear(all)
	collected(t, 0)
	if small, err := Memory(testBytes, 1<<20); err != nil || len(small) != 1<<20 {
		t.Errorf("asked for 1 MiB: %d bytes, %v", len(small), err)
	}
	if more, err := Memory(2*testBytes, 2*testBytes); err != nil || len(more) != testBytes {
		t.Errorf("asked for more: %d bytes, %v", len(more), err)
	}
}

// collected waits for at most so many pieces to be in use.
func collected(t testing.TB, most int) {
	t.Helper()
	for range 1000 {
		runtime.GC() // a pool keeps what it has for two collections
		Sweep()
		runtime.Gosched()
		if Used().Used <= most {
			return
		}
	}
	t.Fatalf("pieces are still in use: %+v", Used())
}

// TestRecycling: of buffers that are cloned, released and lost by many goroutines at once nobody
// ever sees bytes of another one.
func TestRecycling(t *testing.T) {
	memory(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() { recycle(t, rand.New(rand.NewPCG(uint64(g), 1))) })
	}
	wg.Wait()
	collected(t, 0)
}

func recycle(t *testing.T, r *rand.Rand) {
	type held struct {
		v *buffer.View
		b byte
	}
	var all []held
	for step := range 3000 {
		switch r.IntN(4) {
		case 0, 1:
			h := held{buffer.NewView(buffer.MaxChunkSize), byte(r.Uint32())}
			_, _ = h.v.Write(bytes.Repeat([]byte{h.b}, 40000+r.IntN(25000)))
			all = append(all, h)
			if r.IntN(2) == 0 {
				all = append(all, held{h.v.Clone(), h.b})
			}
		default:
			if len(all) == 0 {
				continue
			}
			i := r.IntN(len(all))
			h := all[i]
			if s := h.v.AsSlice(); bytes.Count(s, []byte{h.b}) != len(s) {
				t.Error("bytes of another buffer")
				return
			}
			if r.IntN(4) != 0 { // else lost
				h.v.Release()
			}
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
		if step%500 == 0 {
			runtime.GC()
		}
		if len(all) > 30 {
			all = all[15:]
		}
	}
}

// TestPoison: with the tag chunkpoison, who looks at bytes of a buffer that was released faults.
func TestPoison(t *testing.T) {
	memory(t)
	collected(t, 0)
	for _, v := range views(32) { // see arena.grace
		v.Release()
	}
	v := buffer.NewViewSize(buffer.MaxChunkSize)
	kept := v.AsSlice()
	other := v.Clone()
	v.Release()
	Sweep()
	if err := look(kept); err != nil {
		t.Fatalf("a buffer that is in use: %v", err)
	}
	other.Release()
	Sweep()
	if err := look(kept); (err != nil) != Poisoned {
		t.Errorf("a buffer that was released: %v; poisoned: %t", err, Poisoned)
	}
	lost := buffer.NewViewSize(buffer.MaxChunkSize).AsSlice()
	collected(t, 0)
	if err := look(lost); (err != nil) != Poisoned {
		t.Errorf("a buffer that was lost: %v; poisoned: %t", err, Poisoned)
	}
}

// look reads a byte.
func look(b []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = errors.New("fault")
		}
	}()
	_ = bytes.Count(b[:1], []byte{0})
	return nil
}

// TestLayouts: netstack's types are recognised, and others are refused in a sentence.
func TestLayouts(t *testing.T) {
	field := func(name string, of any) reflect.StructField {
		return reflect.StructField{Name: name, Type: reflect.TypeOf(of), PkgPath: "other"}
	}
	structOf := func(f reflect.StructField) any {
		return reflect.Zero(reflect.StructOf([]reflect.StructField{f})).Interface()
	}
	for _, tt := range []struct {
		name string
		view any
		want string
	}{
		{"ours", buffer.View{}, ""},
		{"no chunk", structOf(field("read", 1)), "no pointer chunk"},
		{"a chunk by value", structOf(field("chunk", 1)), "no pointer chunk"},
		{"a pointer to a slice", structOf(field("chunk", new([]byte))), "no pointer chunk"},
		{"no data", structOf(field("chunk", new(buffer.View))), "no slice data"},
		{"data of words", structOf(field("chunk", &struct{ data []uint16 }{data: nil})),
			"no slice data"},
		{"no count", structOf(field("chunk", &struct{ data []byte }{data: nil})), "no count"},
	} {
		_, err := layoutOf(reflect.TypeOf(tt.view))
		if tt.want == "" && err != nil || tt.want != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestPools: what is not an array of pools of package buffer's is refused, and never followed.
func TestPools(t *testing.T) {
	if err := checkPools(pools[:], bufferPackage); err != nil && process.arena.Load() == nil {
		t.Error(err)
	}
	var none [largest + 1]sync.Pool
	if err := checkPools(none[:], bufferPackage); err == nil ||
		!strings.Contains(err.Error(), "there are no pools") {
		t.Errorf("no such variable: %v", err)
	}
	for i := range none {
		none[i].New = func() any { return nil }
	}
	if err := checkPools(none[:], bufferPackage); err == nil {
		t.Error("functions of another package are taken")
	}
	for _, garbage := range []uintptr{0x1000, 1 << 40, ^uintptr(7)} {
		fill(none[:], garbage)
		if err := checkPools(none[:], bufferPackage); err == nil {
			t.Errorf("%#x is taken for a function", garbage)
		}
		fill(none[:], 0)
	}
	l, err := layoutOf(reflect.TypeFor[buffer.View]())
	if err != nil {
		t.Fatal(err)
	}
	p := pool{layout: l}
	if err := p.checkChunk(new(buffer.View)); err == nil ||
		!strings.Contains(err.Error(), "makes a *buffer.View") {
		t.Errorf("a pool of views: %v", err)
	}
	if err := p.checkChunk(reflect.New(l.chunk).Interface()); err == nil ||
		!strings.Contains(err.Error(), "have 0 bytes") {
		t.Errorf("an empty chunk: %v", err)
	}
}

// TestNoRoom: an arena that cannot be is an error.
func TestNoRoom(t *testing.T) {
	for _, n := range []int{-1, 0, pieceStride - 1, mostBytes + 1} {
		if _, err := newArena(n); err == nil {
			t.Errorf("an arena of %d bytes", n)
		}
	}
}
