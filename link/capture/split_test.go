package capture

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// TestSplit: a capture comes apart into the blocks that were written, with what was lost.
func TestSplit(t *testing.T) {
	tap, err := New(Options{Buffer: MinBuffer})
	if err != nil {
		t.Fatal(err)
	}
	var b Batch
	for range 1000 {
		b.Begin([]*Tap{tap}, In, 0)
		b.Add(&Frame{Bufs: [][]byte{make([]byte, 300)}})
		b.Commit()
	}
	tap.Close()
	var whole bytes.Buffer
	if err := tap.WriteTo(t.Context(), &whole, About{Name: "net0"}, 0); err != nil {
		t.Fatal(err)
	}
	counts := tap.Counts()
	if counts.Lost == 0 || counts.Lost == counts.Accepted {
		t.Fatalf("%+v: some are to be lost", counts)
	}
	for _, cut := range []int{0, 1, 7, 11} {
		s := NewSplitter(bytes.NewReader(whole.Bytes()[:whole.Len()-cut]))
		kinds, size, lost := map[BlockKind]uint64{}, 0, uint64(0)
		var err error
		for err == nil {
			var block Block
			if block, err = s.Next(); err == nil {
				kinds[block.Kind]++
				size += len(block.Bytes)
				lost += block.Lost
			}
		}
		if kinds[BlockHeader] != 1 || kinds[BlockLink] != 1 ||
			kinds[BlockFrame] != counts.Accepted-counts.Lost {
			t.Errorf("%v", kinds)
		}
		if cut == 0 && (!errors.Is(err, io.EOF) || size != whole.Len() || lost != counts.Lost) {
			t.Errorf("%v, %d bytes, %d lost", err, size, lost)
		}
		if cut > 0 && errors.Is(err, io.EOF) {
			t.Errorf("cut off by %d bytes, and no error", cut)
		}
	}
	for _, broken := range [][]byte{{6, 0, 0, 0, 8, 0, 0, 0}, {6, 0, 0, 0, 0, 0, 0, 1},
		{9, 0, 0, 0, 12, 0, 0, 0, 12, 0, 0, 0}} {
		if _, err := NewSplitter(bytes.NewReader(broken)).Next(); err == nil {
			t.Errorf("% x is taken", broken)
		}
	}
}

// FuzzSplit: whatever a file has, Next ends with an error, and blocks lie within it.
func FuzzSplit(f *testing.F) {
	f.Add([]byte{10, 13, 13, 10, 12, 0, 0, 0, 12, 0, 0, 0})
	f.Add(append([]byte{5, 0, 0, 0, 28, 0, 0, 0}, make([]byte, 20)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, size := NewSplitter(bytes.NewReader(b)), 0
		for {
			block, err := s.Next()
			if err != nil {
				return
			}
			if size += len(block.Bytes); size > len(b) {
				t.Fatalf("%d bytes of %d", size, len(b))
			}
		}
	})
}
