package packet

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	txBatch = 64  // frames per system call
	headLen = 128 // bytes of a frame that Post copies: all headers
	// maxWaiting says how many frames wait, copied, for room in the socket's buffer.
	maxWaiting = 2 * txBatch
)

// TxQueue is one socket's sending side. It is not safe for concurrent use: hold Lock around calls
// when there is more than one user, or a Close about.
//
//	Post ─▶ posted ──Flush──▶ the kernel's
//	                 │              ▲
//	                 └─ no room ─▶ waiting, copied ──Retry or Flush
//	                                │
//	                                └─ Close, or refused for another reason ─▶ dropped, counted
type TxQueue struct {
	port  *Port
	index int
	fd    int
	mu    sync.Mutex // taken by users through Lock, and by Close

	// The holder's of mu.
	closed  bool
	msgs    [txBatch]mmsghdr
	heads   [txBatch][vnetLen + vlanLen + headLen]byte
	first   [txBatch + 1]int // of each frame, its first entry in iovs
	iovs    []unix.Iovec     // of all that is posted; grows to what a batch has needed
	posted  int
	waiting [][]byte // with their virtio_net_hdr, the oldest first
	spare   [][]byte // memory for them

	again     [txBatch]mmsghdr // of what waits
	againIovs [txBatch]unix.Iovec

	count txCounts
}

type txCounts struct{ frames, bytes, gso, calls, full, waited, dropped atomic.Uint64 }

// Index returns the queue's number in its port.
func (q *TxQueue) Index() int { return q.index }

// Lock and Unlock guard the queue for its users. Hold it briefly.
func (q *TxQueue) Lock() { q.mu.Lock() }

// Unlock ends what Lock began. What was posted must have been flushed.
func (q *TxQueue) Unlock() { q.mu.Unlock() }

// TryLock is Lock if that takes no waiting, and reports whether it did.
func (q *TxQueue) TryLock() bool { return q.mu.TryLock() }

// Waiting returns how many frames the kernel had no room for yet.
func (q *TxQueue) Waiting() int { return len(q.waiting) }

// maxDatagrams gives the most UDP payload of an IPv4 packet, in bytes.
const maxDatagrams = 65535 - ipv4Len - udpLen

// MaxDatagrams returns how many bytes of UDP payload Post takes with GSOSize: none before Linux
// 6.2, which refuses such frames.
func (q *TxQueue) MaxDatagrams() int {
	if q.port.cutsUDP {
		return maxDatagrams
	}
	return 0
}

// Post adds a frame to the batch that Flush sends.
func (q *TxQueue) Post(f *TxFrame) error {
	size := 0
	for _, b := range f.Bufs {
		size += len(b)
	}
	switch {
	case q.closed || q.port.stopped.Load():
		return ErrClosed
	case size < ethLen || size > maxFrame || f.GSOSize == 0 && size > q.port.MTU()+ethLen:
		return ErrFrameSize
	case len(q.waiting)+q.posted >= maxWaiting:
		return ErrFull
	case q.posted == txBatch:
		q.Flush()
	}
	q.addFrame(f, size)
	return nil
}

// addFrame puts the headers together and lists the rest.
func (q *TxQueue) addFrame(f *TxFrame, size int) {
	i := q.posted
	q.posted++
	buf := &q.heads[i]
	vnet, head := buf[:vnetLen], buf[vnetLen+vlanLen:]
	n, skip, at := 0, 0, 0 // bytes of the head; the first buffer that goes on behind it, and where
	for n < headLen && skip < len(f.Bufs) {
		if at = copy(head[n:], f.Bufs[skip]); at == len(f.Bufs[skip]) {
			skip++
			n, at = n+at, 0
			continue
		}
		n += at
		break
	}
	clear(vnet)
	q.requestOffload(f, vnet, head[:n], size)
	begin := vlanLen
	if f.Flags&TxTag != 0 {
		begin = 0
		insertTag(buf[vnetLen:], vnet, f.VLAN)
	}
	copy(buf[begin:], vnet)
	q.iovs = append(q.iovs[:q.first[i]], unix.Iovec{Base: &buf[begin]})
	q.iovs[len(q.iovs)-1].SetLen(vnetLen + vlanLen - begin + n)
	for ; skip < len(f.Bufs); skip++ {
		if b := f.Bufs[skip][at:]; len(b) > 0 {
			q.iovs = append(q.iovs, unix.Iovec{Base: &b[0]})
			q.iovs[len(q.iovs)-1].SetLen(len(b))
		}
		at = 0
	}
	q.first[i+1] = len(q.iovs)
}

// requestOffload makes the kernel complete the frame as asked.
func (q *TxQueue) requestOffload(f *TxFrame, vnet, head []byte, size int) {
	if f.Flags&TxChecksum == 0 && f.GSOSize == 0 {
		return
	}
	t, ok := findTransport(head)
	if !ok {
		return
	}
	t.completeHeader(head, size)
	gso := 0
	if f.GSOSize > 0 && (t.proto == protoTCP || q.port.cutsUDP) {
		gso = f.GSOSize
		q.count.gso.Add(1)
	}
	putVnet(vnet, head, &t, gso)
}

// insertTag moves the addresses at the front of frame, which has room for it, and adapts the
// offsets in vnet.
func insertTag(frame, vnet []byte, tci uint16) {
	copy(frame, frame[vlanLen:vlanLen+12])
	binary.BigEndian.PutUint16(frame[12:], typeVLAN)
	binary.BigEndian.PutUint16(frame[14:], tci)
	if vnet[0]&vnetNeedsCsum == 0 {
		return
	}
	ne := binary.NativeEndian
	for _, field := range [][]byte{vnet[2:], vnet[6:]} {
		ne.PutUint16(field, ne.Uint16(field)+vlanLen)
	}
}

// Flush gives the kernel what was posted. It copies what the kernel has no room for now.
func (q *TxQueue) Flush() {
	if q.posted == 0 {
		return
	}
	for i := range q.posted {
		m := &q.msgs[i].Msghdr
		m.Iov = &q.iovs[q.first[i]]
		m.SetIovlen(q.first[i+1] - q.first[i])
	}
	done := 0
	if len(q.waiting) == 0 || q.Retry() > 0 && len(q.waiting) == 0 {
		done = q.sendBatch(q.msgs[:q.posted])
	}
	for ; done < q.posted; done++ {
		q.keepCopy(q.iovs[q.first[done]:q.first[done+1]])
	}
	clear(q.iovs) // the memory is the callers'
	q.iovs, q.posted = q.iovs[:0], 0
}

// sendBatch gives frames to the kernel, in order, until it has no room. It returns how many need no
// further attention: those that the kernel refuses for another reason are dropped.
func (q *TxQueue) sendBatch(msgs []mmsghdr) (done int) {
	frames, bytes := 0, 0
	for full := false; done < len(msgs) && !full; {
		q.count.calls.Add(1)
		n, err := sendNow(q.fd, msgs[done:])
		for i := range n {
			bytes += int(msgs[done+i].n) - vnetLen
		}
		frames, done = frames+n, done+n
		switch err {
		case nil, unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS: // the socket's buffer is full, or the interface's queue
			q.count.full.Add(1)
			full = true
		default:
			q.count.dropped.Add(1)
			done++
		}
	}
	q.count.frames.Add(uint64(frames))
	q.count.bytes.Add(uint64(bytes))
	return done
}

// keepCopy copies a frame, which waits from then on.
func (q *TxQueue) keepCopy(parts []unix.Iovec) {
	size := 0
	for i := range parts {
		size += int(parts[i].Len)
	}
	var b []byte
	if last := len(q.spare) - 1; last >= 0 {
		b, q.spare = q.spare[last][:0], q.spare[:last]
	}
	if cap(b) < size {
		b = make([]byte, 0, max(2048, size))
	}
	for i := range parts {
		b = append(b, bytesOf(&parts[i])...)
	}
	q.waiting = append(q.waiting, b)
	q.count.waited.Add(1)
}

// Retry sends what waits, as far as there is room, and returns how many of the frames have gone.
func (q *TxQueue) Retry() (gone int) {
	for len(q.waiting) > 0 && !q.closed {
		n := min(len(q.waiting), txBatch)
		for i, b := range q.waiting[:n] {
			q.againIovs[i].Base = &b[0]
			q.againIovs[i].SetLen(len(b))
			q.again[i].Iov = &q.againIovs[i]
			q.again[i].SetIovlen(1)
		}
		done := q.sendBatch(q.again[:n])
		q.spare = append(q.spare, q.waiting[:done]...)
		q.waiting = append(q.waiting[:0], q.waiting[done:]...)
		if gone += done; done < n {
			break
		}
	}
	return gone
}

// Stats returns the queue's counters; any goroutine may call it, without Lock.
func (q *TxQueue) countersNow() TxStats {
	c := &q.count
	return TxStats{Frames: c.frames.Load(), Bytes: c.bytes.Load(), GSO: c.gso.Load(),
		Calls: c.calls.Load(), Full: c.full.Load(), Waited: c.waited.Load(),
		Dropped: c.dropped.Load()}
}

// closeSocket drops what waits, once its user has let go of the queue.
func (q *TxQueue) closeSocket() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.Retry()
	q.count.dropped.Add(uint64(len(q.waiting)))
	q.waiting, q.spare, q.closed = nil, nil, true
}
