// Package chunkmem makes the large buffers of gVisor's netstack lie in memory that a NIC can read.
//
// Netstack copies what a program writes into chunks of package buffer, of up to 64 KiB, which it
// takes from a pool of the process; the pool makes one when it is empty. From [Memory] on the pool
// of the largest makes them of pieces of an arena, for as long as there are any, and of Go's heap
// after that, as before. The chunk itself stays on Go's heap: when the collector finds that nobody
// refers to it, its piece is free again. The arena lives as long as the process.
//
// A chunk keeps its bytes as long as a View of it is in use, as package buffer asks of its users.
// A slice of a View that is used after the View is a bug that the heap forgives and an arena does
// not: the build tag chunkpoison finds it. It has the arena used by default, every piece used once,
// overwritten and unmapped when it is released, and mapped again as late as possible.
package chunkmem

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

const (
	// pieceSize is the size of netstack's largest chunks that are pooled, in bytes.
	pieceSize = 64 << 10
	// mostBytes bounds what may be asked for.
	mostBytes = 1 << 30
	// poison overwrites what is released, see [Poisoned].
	poison = 0xdb
)

// Stats holds what the arena counts.
type Stats struct {
	Bytes, Pieces int
	Used          int    // pieces that chunks have now, in use or in netstack's pool
	Made          uint64 // chunks that were given a piece
	Missed        uint64 // chunks that found none, and lie on the heap
	Err           error  // why there is no arena, though one was asked for
}

// arena gives out memory in pieces.
type arena struct {
	mem   *mmio.Region
	count int

	mu    sync.Mutex // guards what follows
	free  []uint32   // the next is the last or, of a poisoned arena, the first
	used  []released // by piece; of a poisoned arena only
	turns []uint32   // how often each piece was taken
	// Of a poisoned arena: how many pieces will be taken before free ones are unmapped. A device
	// is about to learn of the memory until then, and the kernel pins no page that is unmapped.
	grace int

	made, missed atomic.Uint64
}

// released says whether the chunk that has a piece is in use no more; nil: no chunk has it.
type released func() bool

// newArena maps an arena of at most so many bytes.
func newArena(bytes int) (*arena, error) {
	n := bytes / pieceStride
	if n < 1 || bytes > mostBytes {
		return nil, fmt.Errorf("buffers of %d bytes: give %d to %d", bytes, pieceStride, mostBytes)
	}
	mem, err := mmio.AllocHuge(n * pieceStride)
	if err != nil {
		return nil, err
	}
	a := &arena{mem: mem, count: n, free: make([]uint32, n), used: make([]released, n),
		turns: make([]uint32, n)}
	for i := range a.free {
		a.free[i] = uint32(n - 1 - i)
	}
	return a, nil
}

// piece names a piece while one chunk has it.
type piece struct{ n, turn uint32 }

// takePiece takes a piece; false: none is free.
func (a *arena) takePiece() (p piece, b []byte, ok bool) {
	a.sweep()
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.free) - 1
	if last < 0 {
		a.missed.Add(1)
		return piece{}, nil, false
	}
	n := a.free[last]
	if Poisoned {
		if a.grace--; a.grace == 0 {
			a.protectFree(false)
		}
		n = a.free[0]
		copy(a.free, a.free[1:])
		mustProtect(a.whole(n), true)
	}
	a.free = a.free[:last]
	a.made.Add(1)
	a.turns[n]++
	return piece{n, a.turns[n]}, a.whole(n)[:chunkSize:chunkSize], true
}

// returnPiece makes a piece free, whose chunk is gone.
func (a *arena) returnPiece(p piece) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !Poisoned {
		a.free = append(a.free, p.n)
	} else if a.used[p.n] != nil && a.turns[p.n] == p.turn { // else by sweep
		a.poisonPiece(p.n)
	}
}

// follow tells a poisoned arena how to ask whether a piece is in use.
func (a *arena) follow(p piece, r released) {
	a.mu.Lock()
	a.used[p.n] = r
	a.mu.Unlock()
}

// sweep makes pieces of a poisoned arena free whose chunks are in use no more.
func (a *arena) sweep() {
	if !Poisoned {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, r := range a.used {
		if r != nil && r() {
			a.poisonPiece(uint32(n))
		}
	}
}

// poisonPiece makes a piece free that nobody may look at any more: whoever does faults, and a NIC
// that has got hold of it sends what is wrong.
func (a *arena) poisonPiece(n uint32) {
	b := a.whole(n)
	for i := range b {
		b[i] = poison
	}
	if a.grace <= 0 {
		mustProtect(b, false)
	}
	a.used[n] = nil
	a.free = append(a.free, n)
}

// protectFree permits or forbids all access to free pieces.
func (a *arena) protectFree(access bool) {
	for _, n := range a.free {
		mustProtect(a.whole(n), access)
	}
}

// awaitRegistration keeps a poisoned arena mapped for a while.
func (a *arena) awaitRegistration() {
	if Poisoned {
		a.mu.Lock()
		a.grace = 32
		a.protectFree(true)
		a.mu.Unlock()
	}
}

// whole returns all bytes of a piece.
func (a *arena) whole(n uint32) []byte { return a.mem.Slice(int(n)*pieceStride, pieceStride) }

func (a *arena) stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{Bytes: a.mem.Len(), Pieces: a.count, Used: a.count - len(a.free),
		Made: a.made.Load(), Missed: a.missed.Load()}
}

// process holds the arena of the process, as netstack's pools are the process's.
var process struct {
	mu    sync.Mutex
	arena atomic.Pointer[arena] // nil: nobody has asked for it
	err   error                 // why netstack does not take it
}

// Memory returns the arena of the process, at most so many bytes of it. The first call makes it, of
// size bytes. An error says why netstack's chunks cannot lie in it, with this version of gVisor.
func Memory(size, bytes int) ([]byte, error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.err != nil {
		return nil, process.err
	}
	a := process.arena.Load()
	if a == nil {
		if a, process.err = install(size); process.err != nil {
			return nil, process.err
		}
		process.arena.Store(a)
	}
	a.awaitRegistration()
	return a.mem.Slice(0, min(bytes, a.mem.Len())), nil
}

// Used returns the counters of the arena; the zero value if there is none.
func Used() Stats {
	if a := process.arena.Load(); a != nil {
		return a.stats()
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	return Stats{Err: process.err}
}

// install makes an arena and has netstack take it.
func install(bytes int) (*arena, error) {
	p, err := largestPool()
	if err != nil {
		return nil, fmt.Errorf("everything is copied, as netstack's buffers are not known: %w; "+
			"use the version of gVisor in our go.mod", err)
	}
	a, err := newArena(bytes)
	if err != nil {
		return nil, err
	}
	p.takeFrom(a)
	return a, nil
}

// Sweep overwrites and unmaps what was released, in a program that is built with the tag
// chunkpoison.
func Sweep() {
	if a := process.arena.Load(); Poisoned && a != nil {
		a.sweep()
	}
}
