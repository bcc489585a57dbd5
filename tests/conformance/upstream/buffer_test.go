package upstream

import (
	"bytes"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
)

// TestChunkClearing: a view of 64 KiB that nothing has been written to takes a chunk of the pool,
// all of which is cleared.
func TestChunkClearing(t *testing.T) {
	full := bytes.Repeat([]byte{0xff}, buffer.MaxChunkSize)
	taken, cleared := 0, 0 // chunks that were taken again
	for range 1000 {
		v := buffer.NewView(buffer.MaxChunkSize)
		v.Write(full)
		before := v.AsSlice() // the chunk's memory, whoever has it
		v.Release()
		v = buffer.NewView(buffer.MaxChunkSize)
		last := before[len(before)-1]
		if v.Write([]byte{1}); before[0] == 1 {
			if taken++; last == 0 {
				cleared++
			}
		}
		v.Release()
	}
	quickest := func(size int) time.Duration {
		least := time.Hour
		for range 2000 {
			began := time.Now()
			buffer.NewView(size).Release()
			least = min(least, time.Since(began))
		}
		return least
	}
	shows(t, "35-chunk-clearing", taken > 0 && cleared == taken, "%d of %d chunks are cleared "+
		"when they are taken again; an empty view of 64 KiB takes %v, one of 64 bytes %v", cleared,
		taken, quickest(buffer.MaxChunkSize), quickest(64))
}
