package xdp

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// RxQueue represents the receiving side of an interface's queue. It has one owner, the goroutine
// that calls Receive and Wait; Wake is for everybody. Until the queue has a socket nothing comes.
type RxQueue struct {
	port   *Port
	index  int
	socket *socket
	woken  chan struct{} // capacity 1: a token for a Wait without a socket
	bound  atomic.Bool   // file and raw are set, and the socket has the queue

	file  *os.File
	raw   syscall.RawConn
	ready func(fd uintptr) bool // isReadable

	// mu belongs to the owner's, taken once per batch, so that Close finds the queue at rest.
	mu     sync.Mutex
	closed bool
	last   counts // of the socket, once it is closed

	frames, bytes, calls, hits, waits, discarded atomic.Uint64
	asleep                                       *clock.Asleep
}

func newRxQueue(p *Port, index int, s *socket) *RxQueue {
	q := &RxQueue{port: p, index: index, socket: s, woken: make(chan struct{}, 1),
		asleep: clock.NewAsleep(clock.Clock{})}
	q.ready = q.isReadable
	return q
}

// useSocket uses the socket, which is bound. The descriptor is the file's then.
func (q *RxQueue) useSocket() (err error) {
	q.file = os.NewFile(uintptr(q.socket.fd), "AF_XDP socket of "+q.port.Name())
	if q.raw, err = q.file.SyscallConn(); err != nil {
		return err
	}
	q.bound.Store(true)
	q.Wake()
	return nil
}

// isReadable reports whether Wait may return.
func (q *RxQueue) isReadable(uintptr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.socket.countReceived() > 0 {
		return true
	}
	q.socket.wakeDriver()
	return false
}

// Index implements packet.Receiver.
func (q *RxQueue) Index() int { return q.index }

// Arm implements packet.Receiver: a look is one load.
func (q *RxQueue) Arm() {}

// Receive implements packet.Receiver.
func (q *RxQueue) Receive(dst []packet.Frame) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		q.letGo()
		return 0
	}
	if !q.bound.Load() {
		return 0
	}
	s := q.socket
	q.calls.Add(1)
	s.returnHeld()
	have := int(s.countReceived())
	if have == 0 {
		return 0
	}
	q.hits.Add(1)
	n, size := min(have, len(dst)), 0
	for i := range n {
		dst[i] = packet.Frame{Data: s.takeFrame()}
		size += len(dst[i].Data)
		if q.port.cfg.VLAN != 0 {
			takeTag(&dst[i])
		}
	}
	s.releaseTaken()
	if q.port.muted.Load() {
		q.discarded.Add(uint64(n))
		return 0
	}
	q.frames.Add(uint64(n))
	q.bytes.Add(uint64(size))
	return n
}

// takeTag takes the tag out of a frame, which the program has seen there.
func takeTag(f *packet.Frame) {
	f.VLAN = binary.BigEndian.Uint16(f.Data[atTag:])
	f.Flags |= packet.RxTagged
	copy(f.Data[vlanLen:], f.Data[:atType])
	f.Data = f.Data[vlanLen:]
}

// dropReceived drops what has been received and not delivered.
func (q *RxQueue) dropReceived() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.bound.Load() {
		return
	}
	q.discarded.Add(uint64(q.socket.returnReceived()))
}

// Wait implements packet.Receiver.
func (q *RxQueue) Wait() error {
	if q.port.over.Load() {
		return q.endOwner()
	}
	q.waits.Add(1)
	q.asleep.Begin()
	err := q.parkUntilReady()
	q.asleep.End()
	if q.port.over.Load() {
		return q.endOwner()
	}
	return err
}

// endOwner lets go of the owner's frames and returns why the port is over.
func (q *RxQueue) endOwner() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.letGo()
	return q.port.Err()
}

// letGo takes back the frames that the owner has had from a queue that is over. Once it is closed,
// too, the last of them takes the memory along. mu is held.
func (q *RxQueue) letGo() {
	q.socket.held = nil
	if q.closed {
		_ = q.socket.unmapAll() // of mappings that nobody else has touched: it cannot fail
	}
}

func (q *RxQueue) parkUntilReady() error {
	if !q.bound.Load() {
		select {
		case <-q.woken:
		case <-q.port.Done():
		}
		return nil
	}
	select {
	case <-q.woken:
	default:
	}
	err := q.raw.Read(q.ready)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = q.file.SetReadDeadline(time.Time{})
	}
	return err
}

// Wake implements packet.Receiver.
func (q *RxQueue) Wake() {
	select {
	case q.woken <- struct{}{}:
	default:
	}
	if q.bound.Load() {
		_ = q.file.SetReadDeadline(time.Unix(1, 0))
	}
}

// countsNow returns the kernel's counters.
func (q *RxQueue) countsNow() counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return q.last
	}
	return q.socket.readCounts()
}

func (q *RxQueue) countersNow() packet.RxStats {
	c := q.countsNow()
	return packet.RxStats{Frames: q.frames.Load(), Bytes: q.bytes.Load(),
		Calls: q.calls.Load(), Hits: q.hits.Load(), Waits: q.waits.Load(),
		AsleepNanos: uint64(q.asleep.Total()), Dropped: c.dropped + c.ringFull,
		Malformed: c.invalid, Discarded: q.discarded.Load(), Stalls: c.fillEmpty}
}

// closeQueue ends the queue and gives its memory back, unless the owner has frames in it: then that
// is left to the owner's next call. Nobody sends by the socket any more.
func (q *RxQueue) closeQueue() error {
	q.Wake()
	q.mu.Lock()
	q.last, q.closed = q.socket.readCounts(), true
	q.mu.Unlock()
	if !q.bound.Load() {
		return q.socket.closeSocket()
	}
	// The descriptor goes with the file, whose Close waits for isReadable, which takes mu. The
	// kernel keeps pages that the NIC may still write to.
	err := q.file.Close()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.socket.held) > 0 {
		return err
	}
	return errors.Join(err, q.socket.unmapAll())
}
