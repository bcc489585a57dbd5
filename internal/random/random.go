// Package random draws the random numbers of stacks, links, drivers and the software NIC from the
// reader that their Config names, so that a test can decide all of them by one seed.
package random

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	mathrand "math/rand/v2"
)

// Source gives random numbers. The zero value is the system's, crypto/rand. Any
// goroutine may use it.
type Source struct{ reader io.Reader }

// From returns a source that reads from r, which any goroutine may use; nil is the system's.
func From(r io.Reader) Source { return Source{r} }

// Seeded reports whether the source is not the system's.
func (s Source) Seeded() bool { return s.reader != nil }

// Read fills b. Where a reader of the caller's fails, the system's takes its place.
func (s Source) Read(b []byte) (int, error) {
	if s.reader != nil {
		if n, err := io.ReadFull(s.reader, b); err == nil {
			return n, nil
		}
	}
	return rand.Read(b) // never fails
}

// Uint64 implements math/rand/v2.Source: New of that package makes other kinds of numbers of it.
func (s Source) Uint64() uint64 {
	var b [8]byte
	s.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Rand draws numbers of other kinds, each from s. Any goroutine may use it.
func (s Source) Rand() *mathrand.Rand { return mathrand.New(s) }

// Stream returns a fast generator with a seed that is drawn from s, for one goroutine at a time.
func (s Source) Stream() *mathrand.Rand {
	var seed [32]byte
	s.Read(seed[:])
	return mathrand.New(mathrand.NewChaCha8(seed))
}
