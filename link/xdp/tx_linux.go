package xdp

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// txQueue sends by an AF_XDP socket. What is posted is copied into frames of the socket's, segments
// cut up, checksums computed unless the kernel or the NIC does that. It is the holder's of mu.
type txQueue struct {
	port   *Port
	index  int
	socket *socket
	rx     *RxQueue // whose socket it is, and which says whether that is bound
	mu     sync.Mutex
	closed bool
	full   bool // a frame has found no room since
	cut    cutter

	frames, bytes, gso, fulls, dropped atomic.Uint64
}

// Lock implements packet.Sender.
func (q *txQueue) Lock() { q.mu.Lock() }

// Unlock implements packet.Sender.
func (q *txQueue) Unlock() { q.mu.Unlock() }

// TryLock implements packet.Sender.
func (q *txQueue) TryLock() bool { return q.mu.TryLock() }

// Waiting implements packet.Sender.
func (q *txQueue) Waiting() int {
	if q.full {
		return 1
	}
	return 0
}

// Retry implements packet.Sender: nothing is kept here, but frames that have been sent make room.
func (q *txQueue) Retry() int {
	if q.closed || !q.rx.bound.Load() {
		return 0
	}
	q.socket.sendPosted()
	q.socket.reclaimSent()
	if q.full && len(q.socket.free) >= txFrames/4 {
		q.full = false
		return 1
	}
	return 0
}

// MaxDatagrams implements packet.Sender: datagrams are posted one by one.
func (q *txQueue) MaxDatagrams() int { return 0 }

// Flush implements packet.Sender.
func (q *txQueue) Flush() {
	if !q.closed && q.rx.bound.Load() {
		q.socket.sendPosted()
	}
}

// Post implements packet.Sender.
func (q *txQueue) Post(f *packet.TxFrame) error {
	size := 0
	for _, b := range f.Bufs {
		size += len(b)
	}
	switch {
	case q.closed || q.port.over.Load():
		return packet.ErrClosed
	case size < ethLen || f.GSOSize == 0 && size > q.port.MTU()+ethLen:
		return packet.ErrFrameSize
	case !q.rx.bound.Load(): // another process has the queue yet: as if the link were down
		q.dropped.Add(1)
		return nil
	}
	need := 1
	if f.GSOSize > 0 {
		need = size/f.GSOSize + 1
	}
	s := q.socket
	if len(s.free) < need {
		s.reclaimSent()
	}
	if len(s.free) < need {
		s.sendPosted()
		s.reclaimSent()
	}
	if len(s.free) < need {
		q.full = true
		q.fulls.Add(1)
		return packet.ErrFull
	}
	tag := 0
	if f.Flags&packet.TxTag != 0 {
		tag = vlanLen
	}
	if f.GSOSize > 0 && q.cut.beginSegment(f.Bufs, f.GSOSize) {
		q.gso.Add(1)
		for q.cut.hasMore() {
			addr, room := q.takeFree()
			q.finishFrame(f, addr, room, tag, q.cut.nextSegment(room[tag:]))
		}
		return nil
	}
	if size+tag > chunk-txRoom {
		return packet.ErrFrameSize
	}
	addr, room := q.takeFree()
	n := 0
	for _, b := range f.Bufs {
		n += copy(room[tag+n:], b)
	}
	q.finishFrame(f, addr, room, tag, n)
	return nil
}

// takeFree takes a free frame, whose bytes begin behind the room for metadata.
func (q *txQueue) takeFree() (addr uint64, room []byte) {
	last := len(q.socket.free) - 1
	addr = q.socket.free[last]
	q.socket.free = q.socket.free[:last]
	return addr, q.socket.frames[addr+txRoom : addr+chunk]
}

// finishFrame completes the untagged frame of n bytes at room[tag:], and posts it.
func (q *txQueue) finishFrame(f *packet.TxFrame, addr uint64, room []byte, tag, n int) {
	options := uint32(0)
	if f.Flags&packet.TxChecksum != 0 || f.GSOSize > 0 {
		if t, ok := findTransport(room[tag : tag+n]); ok {
			options = q.sumFrame(addr, room[tag:tag+n], t, tag)
		}
	}
	if tag > 0 {
		copy(room, room[tag:tag+atType])
		binary.BigEndian.PutUint16(room[atType:], typeVLAN)
		binary.BigEndian.PutUint16(room[atTag:], f.VLAN)
		n += tag
	}
	q.socket.postFrame(addr+txRoom, n, options)
	q.frames.Add(1)
	q.bytes.Add(uint64(n))
}

// sumFrame computes the checksums of a frame, or leaves the transport's to the kernel, which does
// it in copies, or to a NIC whose driver says that it can: others ignore the request in zero copy.
func (q *txQueue) sumFrame(addr uint64, frame []byte, t transport, tag int) (options uint32) {
	pseudo := t.prepareSum(frame)
	s := q.socket
	if !s.metadata || s.zeroCopy && !q.port.facts.metadata {
		t.completeSum(frame, pseudo)
		return 0
	}
	binary.BigEndian.PutUint16(frame[t.at+t.sumOffset():], pseudo)
	m := s.frames[addr+txRoom-metadataLen : addr+txRoom]
	ne := binary.NativeEndian
	ne.PutUint64(m, unix.XDP_TXMD_FLAGS_CHECKSUM)
	ne.PutUint16(m[8:], uint16(t.at+tag))
	ne.PutUint16(m[10:], uint16(t.sumOffset()))
	return unix.XDP_TX_METADATA
}

func (q *txQueue) countersNow() packet.TxStats {
	return packet.TxStats{Frames: q.frames.Load(), Bytes: q.bytes.Load(), GSO: q.gso.Load(),
		Calls: q.socket.sends.Load(), Full: q.fulls.Load(), Dropped: q.dropped.Load()}
}

// closeQueue ends the queue, once its user has let go of it.
func (q *txQueue) closeQueue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
