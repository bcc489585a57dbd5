package dv

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// The NIC's side of one queue, as bytes: a test writes completions into the
// ring and reads descriptors and records out of it. Offsets are spelled here
// on purpose, instead of taken from the code under test.

// fakeCQ writes completions.
type fakeCQ struct {
	buf  []byte
	size uint32
	pi   uint32 // completions written
}

// put copies a completion of 64 bytes to the ring and hands it over.
func (f *fakeCQ) put(cqe *[64]byte) {
	slot := f.pi % f.size
	owner := byte(f.pi / f.size & 1)
	cqe[63] = cqe[63]&^1 | owner
	copy(f.buf[slot*64:], cqe[:])
	f.pi++
}

// receive is the completion of a frame of n bytes in receive descriptor index.
func receive(index uint16, n int) *[64]byte {
	var c [64]byte
	binary.BigEndian.PutUint32(c[0x0c:], 0x51ccc178) // hash
	c[0x10] = 0x55                                   // over TCP and IPv4
	binary.BigEndian.PutUint32(c[0x1c:], 0x07480000) // all checksums right, IPv4, TCP with data
	binary.BigEndian.PutUint32(c[0x2c:], uint32(n))
	binary.BigEndian.PutUint64(c[0x30:], 0x1122334466)
	binary.BigEndian.PutUint16(c[0x3c:], index)
	c[63] = 0x20
	return &c
}

// sent is the completion of the send descriptor that starts at block index.
func sent(index uint16) *[64]byte {
	var c [64]byte
	c[0x38] = 0x0a
	binary.BigEndian.PutUint16(c[0x3c:], index)
	return &c
}

// failed is an error completion: kind 0xd0 of a send, 0xe0 of a receive.
func failed(kind byte, syndrome byte, index uint16) *[64]byte {
	var c [64]byte
	c[0x36], c[0x37] = 0xf9, syndrome
	binary.BigEndian.PutUint16(c[0x3c:], index)
	c[63] = kind | 2
	return &c
}

// memory is a region that lives as long as the test.
func memory(t testing.TB, size int) *mmio.Region {
	t.Helper()
	r, err := mmio.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// rxRig is a receive queue with a fake NIC behind it. halts, starts and fails
// count what the queue asked of its device.
type rxRig struct {
	q             *RxQueue
	pool          *Pool
	nic           fakeCQ
	next          uint16 // receive descriptor the NIC takes next
	rec, cqRec    *mmio.Region
	halts, starts int
	failure       error
	haltErr       error
	minis         [][8]byte       // scratch memory
	pauses        []time.Duration // after which the owner is to be woken
}

func newRxRig(t testing.TB,
	entries, frames int) *rxRig {
	return newRxRigOf(t, entries, frames, 2048)
}

// newRxRigOf is newRxRig with frames of size bytes.
func newRxRigOf(t testing.TB, entries, frames, size int) *rxRig {
	pool := newPool(memory(t, frames*size), 0x12a4, size, frames)
	cqMem, rec, cqRec := memory(t, entries*64), memory(t, 8), memory(t, 8)
	r := &rxRig{pool: pool, rec: rec, cqRec: cqRec}
	r.q = newRxQueue(0, entries, memory(t, entries*16), rec,
		newCompRing(cqMem, cqRec, entries), pool)
	r.nic = fakeCQ{buf: cqMem.Slice(0, entries*64), size: uint32(entries)}
	r.q.queueControl = queueControl{
		halt:  func() error { r.halts++; return r.haltErr },
		start: func() error { r.starts++; r.next = 0; return nil },
		fail:  func(err error) { r.failure = err; r.q.signals.raiseBits(signalFailed) },
		ended: func() error { return errors.Join(ErrFailed, r.failure) },

		wakeAfter: func(_ wakeReason, pause time.Duration) { r.pauses = append(r.pauses, pause) },
	}
	r.q.page = &uverbs.Page{Trap: func(int, uint64) {}}
	r.q.Refill()
	return r
}

// posted is what the doorbell record says.
func (r *rxRig) posted() uint16 { return uint16(r.rec.LoadBE32(0)) }

// receive lets the NIC deliver n frames of size bytes.
func (r *rxRig) receive(n, size int) {
	for range n {
		r.nic.put(receive(r.next, size))
		r.next++
	}
}

// txRig is a send queue with a fake NIC behind it.
type txRig struct {
	q             *TxQueue
	pool          *Pool
	nic           fakeCQ
	ring          []byte
	rec, cqRec    *mmio.Region
	cqMem         *mmio.Region
	stage         *mmio.Region
	bells         []uint64
	halts, starts int
	failure       error
	linkDown      bool
}

const (
	testSQN  = 0x123
	testLKey = 0x12a4
)

func newTxRig(t testing.TB, blocks, stageSize int, limits txLimits) *txRig {
	pool := newPool(memory(t, 64*2048), 0x7700, 2048, 64)
	r := &txRig{pool: pool, rec: memory(t, 8), cqRec: memory(t, 8), cqMem: memory(t, blocks*64),
		stage: memory(t, stageSize)}
	ring := memory(t, blocks*64)
	r.ring = ring.Slice(0, blocks*64)
	r.q = newTxQueue(0, blocks, ring, r.rec, pool, staging{
		buf: r.stage.Slice(0, stageSize), addr: r.stage.Addr(), lkey: testLKey,
		size: uint32(stageSize)}, limits)
	r.q.queueControl = queueControl{
		halt:  func() error { r.halts++; return nil },
		start: func() error { r.starts++; r.connect(); return nil },
		fail:  func(err error) { r.failure = err; r.q.signals.raiseBits(signalFailed) },
		ended: func() error { return errors.Join(ErrFailed, r.failure) },

		linkUp: func() bool { return !r.linkDown },
	}
	r.connect()
	return r
}

// fakeClock stands still unless it is moved.
type fakeClock struct{ at time.Time }

func newFakeClock() *fakeClock { return &fakeClock{time.Unix(1000, 0)} }

func (c *fakeClock) now() time.Time { return c.at }

func (c *fakeClock) add(d time.Duration) { c.at = c.at.Add(d) }

// connect gives the queue a NIC that knows nothing yet.
func (r *txRig) connect() {
	size := int(r.q.size)
	r.q.cq = newCompRing(r.cqMem, r.cqRec, size)
	r.nic = fakeCQ{buf: r.cqMem.Slice(0, size*64), size: uint32(size)}
	r.q.sqn, r.q.register = testSQN, 0x800
	r.q.page = &uverbs.Page{Trap: func(off int, v uint64) { r.bells = append(r.bells, v) }}
}

// defaultLimits are those of a current card with an MTU of 1500.
var defaultLimits = txLimits{frame: 1518, tso: 64 << 10, lsoHeader: 256}
