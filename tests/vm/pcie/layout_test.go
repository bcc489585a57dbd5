package pcie

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestField(t *testing.T) {
	tests := []struct {
		name string
		f    field
		v    uint64
		want []byte // written over 0xa5 bytes
	}{
		{"one byte", field{8, 8}, 0x12, []byte{0xa5, 0x12, 0xa5, 0xa5}},
		{"most significant bit", field{0, 1}, 0, []byte{0x25, 0xa5, 0xa5, 0xa5}},
		{"across bytes", field{4, 8}, 0xff, []byte{0xaf, 0xf5, 0xa5, 0xa5}},
		{"24 bits behind 8", field{8, 24}, 0x010203, []byte{0xa5, 1, 2, 3}},
		{"odd", field{7, 11}, 0x7ff, []byte{0xa5, 0xff, 0xe5, 0xa5}},
		{"beyond the end", field{24, 16}, 0xbbcc, []byte{0xa5, 0xa5, 0xa5, 0xbb}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := bytes.Repeat([]byte{0xa5}, 4)
			tt.f.set(b, tt.v)
			if !bytes.Equal(b, tt.want) {
				t.Fatalf("set: % x, want % x", b, tt.want)
			}
		})
	}
}

func TestFieldReadsWhatItWrote(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		b := make([]byte, 24)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		before := bytes.Clone(b)
		f := field{r.IntN(100), 1 + r.IntN(64)}
		v := r.Uint64() >> (64 - f.width)
		old := f.get(b)
		f.set(b, v)
		if got := f.get(b); got != v {
			t.Fatalf("%+v: wrote %#x, read %#x", f, v, got)
		}
		f.set(b, old)
		if !bytes.Equal(b, before) {
			t.Fatalf("%+v: touched bits outside the field", f)
		}
	}
}

func TestPart(t *testing.T) {
	b := []byte{1, 2, 3, 4}
	for _, tt := range []struct {
		off, n int
		want   []byte
	}{{0, 4, b}, {2, 2, []byte{3, 4}}, {3, 3, []byte{4, 0, 0}}, {9, 2, []byte{0, 0}}} {
		if got := part(b, tt.off, tt.n); !bytes.Equal(got, tt.want) {
			t.Errorf("part(%d, %d) = % x, want % x", tt.off, tt.n, got, tt.want)
		}
	}
}
