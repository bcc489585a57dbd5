package packet

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

const (
	rxBatch = 32 // frames per system call
	// rxSlot is the room for a frame and what precedes it, in bytes: 64 KiB, and some so that the
	// slots begin in different sets of the processor's caches.
	rxSlot = 64<<10 + 192
	// controlLen is the room for struct tpacket_auxdata as a control message.
	controlLen = 64
)

// RxQueue is one socket's receiving side. It has one owner, the goroutine that calls Receive and
// Wait; Wake and Stats are for everybody.
type RxQueue struct {
	port  *Port
	index int
	file  *os.File
	raw   syscall.RawConn
	fd    int
	clock clock.Clock           // the system's
	ready func(fd uintptr) bool // pollReadable

	// mu is the owner's, taken once per batch, so that Close finds the queue at rest. It guards
	// what follows.
	mu      sync.Mutex
	closed  bool
	msgs    [rxBatch]mmsghdr
	iovs    [rxBatch]unix.Iovec
	control [rxBatch][controlLen]byte
	mem     []byte // rxBatch slots
	n, next int    // messages received, and the next to hand out
	empty   bool   // the next Receive need not ask the kernel
	split   splitter
	cutting bool     // message next is being cut up by split
	whole   [][]byte // fragments of datagrams that are whole, to be handed out first

	count  rxCounts
	asleep *clock.Asleep // Begin and End are the owner's
}

type rxCounts struct {
	frames, bytes, merged, split, calls, hits, waits atomic.Uint64
	dropped, tooLong, malformed, discarded           atomic.Uint64
	unclaimed                                        atomic.Uint64
}

func (q *RxQueue) initSocket(p *Port, index int, file *os.File, raw syscall.RawConn, fd int) {
	q.port, q.index, q.file, q.raw, q.fd = p, index, file, raw, fd
	q.ready = q.pollReadable
	q.asleep = clock.NewAsleep(q.clock)
	q.mem = make([]byte, rxBatch*rxSlot)
	for i := range q.msgs {
		q.iovs[i].Base = &q.mem[i*rxSlot]
		q.iovs[i].SetLen(rxSlot)
		m := &q.msgs[i].Msghdr
		m.Iov, m.Control = &q.iovs[i], &q.control[i][0]
		m.SetIovlen(1)
		m.SetControllen(controlLen)
	}
}

// Index returns the queue's number in its port.
func (q *RxQueue) Index() int { return q.index }

// Receive fills dst with received frames and returns how many, 0 if there are none. It does not
// wait. The frames before are gone. The Receive after one that left the socket empty returns 0
// without a look at it, which would be in vain mostly, and costs a system call.
func (q *RxQueue) Receive(dst []Frame) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.hasFrames() && (q.skipLook() || !q.askKernel()) {
		return 0
	}
	n, size := 0, uint64(0)
	for n < len(dst) && q.hasFrames() {
		if q.takeWhole(&dst[n]) || q.decodeMessage(&dst[n]) {
			size += uint64(len(dst[n].Data))
			n++
		}
	}
	q.count.frames.Add(uint64(n))
	q.count.bytes.Add(size)
	return n
}

// hasFrames reports whether there is something that the kernel need not be asked for.
func (q *RxQueue) hasFrames() bool { return q.next < q.n || len(q.whole) > 0 }

// takeWhole makes a frame of the next fragment of a datagram that is whole.
func (q *RxQueue) takeWhole(f *Frame) bool {
	if len(q.whole) == 0 {
		return false
	}
	*f = Frame{Data: q.whole[0]}
	q.whole = q.whole[1:]
	return true
}

// skipLook reports whether this look at the socket is left out.
func (q *RxQueue) skipLook() bool {
	was := q.empty
	q.empty = false
	return was
}

// Arm has the next Receive return 0 without a look at the socket, unless it has frames already: the
// Wait behind it looks itself.
func (q *RxQueue) Arm() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.empty = true
}

// askKernel asks the kernel for frames and reports whether there are any.
func (q *RxQueue) askKernel() bool {
	for i := range q.n {
		q.msgs[i].SetControllen(controlLen)
	}
	q.n, q.next = 0, 0
	q.split.arena = q.split.arena[:0]
	for {
		q.count.calls.Add(1)
		n, err := receiveNow(q.fd, q.msgs[:])
		switch err {
		case nil:
			q.n, q.empty = n, n < len(q.msgs)
			q.count.hits.Add(1)
			return true
		case unix.EINTR:
		case unix.EINVAL: // a kind of segmentation that the kernel has no number for
			q.count.malformed.Add(1)
		case unix.ENETDOWN: // told once; the port's watcher knows
		default: // EAGAIN
			return false
		}
	}
}

// decodeMessage makes a frame of the next message. False: it held none.
func (q *RxQueue) decodeMessage(f *Frame) bool {
	i := q.next
	m := &q.msgs[i]
	if q.cutting {
		return q.cutDatagram(f, i)
	}
	slot := q.mem[i*rxSlot : (i+1)*rxSlot]
	q.next++
	switch {
	case m.Flags&unix.MSG_TRUNC != 0:
		q.count.tooLong.Add(1)
		return false
	case m.n < vnetLen+ethLen:
		q.count.malformed.Add(1)
		return false
	}
	vnet, data := slot[:vnetLen], slot[vnetLen:m.n]
	if t := q.port.ports.Load(); t != nil && !q.claim(t, data) {
		return false
	}
	if vnet[1]&^vnetECN == vnetUDPL4 && q.split.beginFrame(data, int(gsoSize(vnet))) {
		q.next--
		q.cutting = true
		q.count.split.Add(1)
		return q.cutDatagram(f, i)
	}
	*f = Frame{Data: data, Flags: rxFlags(vnet)}
	if vnet[1] != 0 {
		f.GSOSize = gsoSize(vnet)
		q.count.merged.Add(1)
	}
	q.addAuxiliary(f, i)
	return true
}

// claim reports whether a frame to the host's MAC is ours as it is. Of a datagram in fragments it
// keeps these, and puts them into whole once all have come.
func (q *RxQueue) claim(t *portTable, frame []byte) bool {
	if p, ok := parseFragment(frame); ok {
		whole, taken := q.port.fragments.add(t, &p, frame, q.clock.Now())
		if !taken {
			q.count.unclaimed.Add(1)
		}
		q.whole = append(q.whole, whole...)
		return false
	}
	if !t.isOurs(frame) {
		q.count.unclaimed.Add(1)
		return false
	}
	return true
}

// cutDatagram makes a frame of the next datagram of message i.
func (q *RxQueue) cutDatagram(f *Frame, i int) bool {
	*f = Frame{Data: q.split.nextDatagram(), Flags: RxChecksumOK | RxHeaderOK}
	q.addAuxiliary(f, i)
	if !q.split.hasMore() {
		q.cutting = false
		q.next++
	}
	return true
}

// Bits of tpacket_auxdata.tp_status (include/uapi/linux/if_packet.h), and its length.
const (
	statusVLANValid = 1 << 4
	statusCsumValid = 1 << 7
	auxdataLen      = 20
)

// addAuxiliary adds what the control message says: struct tpacket_auxdata, which has the status
// first, the tag in bytes 16 and 17.
func (q *RxQueue) addAuxiliary(f *Frame, i int) {
	const header = unix.SizeofCmsghdr
	if q.msgs[i].Controllen < header+auxdataLen {
		return
	}
	aux := q.control[i][header:]
	ne := binary.NativeEndian
	status := ne.Uint32(aux)
	if status&statusCsumValid != 0 {
		f.Flags |= RxChecksumOK
	}
	if status&statusVLANValid != 0 {
		f.Flags |= RxTagged
		f.VLAN = ne.Uint16(aux[16:])
	}
}

// pollReadable reports whether Wait may return. Wait calls it before it parks and when it is woken.
func (q *RxQueue) pollReadable(uintptr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed || q.hasFrames() || q.askKernel()
}

// Wait parks the goroutine until there are frames, Wake, or the end: then it returns ErrClosed, or
// an error that says what has become of the interface.
func (q *RxQueue) Wait() error {
	if q.port.stopped.Load() {
		return q.port.Err()
	}
	q.count.waits.Add(1)
	q.asleep.Begin()
	err := q.raw.Read(q.ready)
	q.asleep.End()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = q.file.SetReadDeadline(time.Time{})
	}
	if q.port.stopped.Load() {
		return q.port.Err()
	}
	return err
}

// Wake makes the Wait that is going on, or else the next one, return nil. Any goroutine may call
// it.
func (q *RxQueue) Wake() { _ = q.file.SetReadDeadline(time.Unix(1, 0)) }

// countDrops adds what the kernel has dropped since the last call, which forgets it. It is called
// with the port's mutex held.
func (q *RxQueue) countDrops() {
	stats, err := unix.GetsockoptTpacketStats(q.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil {
		q.count.dropped.Add(uint64(stats.Drops))
	}
}

func (q *RxQueue) closeSocket() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

func (q *RxQueue) countersNow() RxStats {
	c := &q.count
	return RxStats{
		Frames: c.frames.Load(), Bytes: c.bytes.Load(), Merged: c.merged.Load(),
		Split: c.split.Load(), Calls: c.calls.Load(), Hits: c.hits.Load(), Waits: c.waits.Load(),
		AsleepNanos: uint64(q.asleep.Total()), Dropped: c.dropped.Load(),
		TooLong: c.tooLong.Load(), Malformed: c.malformed.Load(),
		Discarded: c.discarded.Load(), Unclaimed: c.unclaimed.Load(),
	}
}
