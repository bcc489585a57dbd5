package chunkmem

import (
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"gvisor.dev/gvisor/pkg/buffer"
)

// pools are package buffer's, by log2 of the size of their chunks / 64. If it has no variable of
// this name, this is an empty one of our own.
//
//go:linkname pools gvisor.dev/gvisor/pkg/buffer.chunkPools
var pools [largest + 1]sync.Pool

// largest numbers the pool of chunks of 64 KiB.
const largest = 10

// bufferPackage begins the names of package buffer's functions.
const bufferPackage = "gvisor.dev/gvisor/pkg/buffer."

// pool describes a pool of package buffer's that has been looked at.
type pool struct {
	pool *sync.Pool
	layout
}

// layout says where a chunk has what we need of it.
type layout struct {
	chunk      reflect.Type
	data, refs uintptr // offsets, in bytes
}

// largestPool returns the pool of the largest chunks if that, and they, are as they should be.
func largestPool() (pool, error) {
	l, err := layoutOf(reflect.TypeFor[buffer.View]())
	if err != nil {
		return pool{}, err
	}
	if err := checkPools(pools[:], bufferPackage); err != nil {
		return pool{}, err
	}
	p := pool{&pools[largest], l}
	return p, p.checkChunk(p.pool.New())
}

// layoutOf looks at the type of views: a field chunk is a pointer to a struct of a slice data and
// of a count of references, which is one word.
func layoutOf(view reflect.Type) (l layout, err error) {
	f, ok := view.FieldByName("chunk")
	if !ok || f.Type.Kind() != reflect.Pointer || f.Type.Elem().Kind() != reflect.Struct {
		return l, fmt.Errorf("%v has no pointer chunk to a struct", view)
	}
	l.chunk = f.Type.Elem()
	data, ok := l.chunk.FieldByName("data")
	if !ok || data.Type != reflect.TypeFor[[]byte]() {
		return l, fmt.Errorf("%v has no slice data of bytes", l.chunk)
	}
	refs, ok := l.chunk.FieldByName("refCount")
	if !ok || refs.Type.Size() != 8 || len(refs.Index) != 2 {
		return l, fmt.Errorf("%v has no count of references of 8 bytes", l.chunk)
	}
	outer := l.chunk.FieldByIndex(refs.Index[:1])
	l.data, l.refs = data.Offset, outer.Offset+refs.Offset
	return l, nil
}

// checkPools says whether each pool has a function New of a package. They may be anything: what is
// read on the way may fault.
func checkPools(pools []sync.Pool, of string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%schunkPools are no pools: %v", of, r)
		}
	}()
	for i := range pools {
		word := *(*unsafe.Pointer)(unsafe.Pointer(&pools[i].New))
		if word == nil {
			return fmt.Errorf("there are no pools %schunkPools with a function New", of)
		}
		f := runtime.FuncForPC(*(*uintptr)(word))
		if f == nil || !strings.HasPrefix(f.Name(), of) {
			return fmt.Errorf("%schunkPools are no pools", of)
		}
	}
	return nil
}

// checkChunk says whether a pool has made a chunk of the size that we have pieces for.
func (p *pool) checkChunk(made any) error {
	if got := reflect.TypeOf(made); got != reflect.PointerTo(p.chunk) {
		return fmt.Errorf("the pool of the largest makes a %v, not a pointer to %v", got, p.chunk)
	}
	if n := len(*p.dataOf(made)); n != pieceSize || buffer.MaxChunkSize != pieceSize {
		return fmt.Errorf("the largest chunks have %d bytes, not %d", n, pieceSize)
	}
	return nil
}

// takeFrom has the pool make chunks of the pieces of a. The pool may be in use: the store is an
// atomic one, though those who read the field do not know.
func (p *pool) takeFrom(a *arena) {
	onHeap := p.pool.New
	made := func() any {
		n, b, ok := a.takePiece()
		if ok {
			return p.makeChunk(a, n, b)
		}
		c := onHeap()
		if Poisoned { // used once as well, so that the pieces are used again
			*p.dataOf(c) = make([]byte, chunkSize)
		}
		return c
	}
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(&p.pool.New)),
		*(*unsafe.Pointer)(unsafe.Pointer(&made)))
}

// dataOf returns where a chunk has its bytes.
func (p *pool) dataOf(chunk any) *[]byte {
	return (*[]byte)(unsafe.Add(reflect.ValueOf(chunk).UnsafePointer(), p.data))
}

// makeChunk makes the chunk of a piece, whose bytes are b.
func (p *pool) makeChunk(a *arena, n piece, b []byte) any {
	v := reflect.New(p.chunk)
	chunk, start := v.Interface(), (*byte)(v.UnsafePointer())
	*p.dataOf(chunk) = b
	if Poisoned {
		p.followChunk(a, n, start)
	}
	runtime.AddCleanup(start, a.returnPiece, n)
	return chunk
}

// followChunk lets a see when nobody refers to the chunk any more. Package buffer sets the count
// when it takes the chunk from the pool.
func (p *pool) followChunk(a *arena, n piece, c *byte) {
	refs := func(c *byte) *atomic.Int64 {
		return (*atomic.Int64)(unsafe.Add(unsafe.Pointer(c), p.refs))
	}
	refs(c).Store(1)
	w := weak.Make(c)
	a.follow(n, func() bool {
		c := w.Value()
		return c != nil && refs(c).Load() == 0
	})
}
