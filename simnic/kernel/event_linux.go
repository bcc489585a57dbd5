package kernel

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// eventFile represents the kernel's side of an event descriptor. The client's side is the other end
// of a socket pair that preserves message boundaries: one read returns one event. The client owns
// its end and may close it at any time.
//
// It is called with locks of queues held, so it never waits: records that the socket does not
// accept go to a backlog, which a goroutine delivers as the client reads.
type eventFile struct {
	queue *eventQueue // instead of all that follows but fd; nil: a descriptor

	mu      sync.Mutex // covers what follows
	file    *os.File   // our end
	raw     syscall.RawConn
	fd      int    // number of the client's end when it was created
	inode   uint64 // of the client's end: the number may be another file's by now
	backlog [][]byte
	dead    bool

	record []byte // record being sent, in room
	room   [16]byte
	result error
	sendFn func(fd uintptr) // created once, so that sending does not allocate
}

// maxBacklog gives the maximum backlog for a client that does not read, in events.
const maxBacklog = 1 << 16

// newEventFile returns an eventFile and the client's descriptor, which is close-on-exec and
// blocking.
func newEventFile(name string) (*eventFile, unix.Errno) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errnoOf(err)
	}
	e := &eventFile{fd: fds[1]}
	e.sendFn = e.sendRecord
	var st unix.Stat_t
	if err = unix.Fstat(fds[1], &st); err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	e.inode = st.Ino
	e.file = os.NewFile(uintptr(fds[0]), name)
	if err == nil {
		e.raw, err = e.file.SyscallConn()
	}
	if err != nil {
		e.closeOurEnd()
		_ = unix.Close(fds[1])
		return nil, errnoOf(err)
	}
	return e, 0
}

// hasFD reports whether descriptor fd of the client is this file.
func (e *eventFile) hasFD(fd int) bool {
	if e.queue != nil {
		return fd == e.fd && !e.queue.abandoned()
	}
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK && st.Ino == e.inode
}

// postRecord queues a record for the client.
func (e *eventFile) postRecord(record []byte) {
	if e.queue != nil {
		e.queue.appendRecord(record)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead || len(e.backlog) >= maxBacklog {
		return
	}
	e.record = append(e.room[:0], record...)
	if len(e.backlog) == 0 && e.trySendRecord() {
		return
	}
	e.backlog = append(e.backlog, slices.Clone(e.record))
	if len(e.backlog) == 1 {
		go e.deliverBacklog()
	}
}

// trySendRecord reports whether the record is done: delivered, or dropped because the client closed
// its end.
func (e *eventFile) trySendRecord() bool {
	err := e.raw.Control(e.sendFn)
	if err == nil && e.result == unix.EAGAIN {
		return false
	}
	e.dead = err != nil || e.result != nil // the client closed its end
	return true
}

func (e *eventFile) sendRecord(fd uintptr) {
	e.result = unix.Send(int(fd), e.record, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// deliverBacklog delivers the backlog, waiting for the client where needed.
func (e *eventFile) deliverBacklog() {
	_ = e.raw.Write(func(fd uintptr) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for len(e.backlog) > 0 {
			err := unix.Send(int(fd), e.backlog[0], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if err == unix.EAGAIN {
				return false
			}
			if err != nil {
				e.dead, e.backlog = true, nil
				return true
			}
			e.backlog = e.backlog[1:]
		}
		return true
	})
}

// abandoned reports whether the client closed its end, and then closes ours. Later records of
// queues are dropped, as in linux.
func (e *eventFile) abandoned() bool {
	if e.queue != nil {
		return e.queue.abandoned()
	}
	gone := false
	err := e.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		gone = err == nil && p[0].Revents&unix.POLLHUP != 0
	})
	if err == nil && gone {
		e.closeOurEnd()
	}
	return gone || err != nil
}

// closeOurEnd closes our end: the client can still read the records sent, then it reads end of
// file.
func (e *eventFile) closeOurEnd() {
	if e.queue != nil {
		e.queue.endRecords()
		return
	}
	e.mu.Lock()
	e.dead, e.backlog = true, nil
	e.mu.Unlock()
	_ = e.file.Close()
}

// closeBothEnds closes both ends: the client was not told of its own.
func (e *eventFile) closeBothEnds() {
	e.closeOurEnd()
	if e.queue == nil {
		_ = unix.Close(e.fd)
	}
}

// postAsync posts an asynchronous event. A nil file is a client without asynchronous events.
func (e *eventFile) postAsync(t uverbs.EventType, element uint64) {
	if e == nil {
		return
	}
	b := make([]byte, uverbs.SizeOf(uverbs.AsyncEventDesc{}))
	uverbs.PutStruct(b, uverbs.AsyncEventDesc{Element: element, EventType: uint32(t)})
	e.postRecord(b)
}

// completion posts a completion event of the queue with the client's handle.
func (e *eventFile) completion(user uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], user)
	e.postRecord(b[:])
}

// eventSet holds the event descriptors of one open file. Only locks of descriptors are taken inside
// its lock: events come while queues are locked.
type eventSet struct {
	mu       sync.Mutex
	async    []*eventFile // objects report to the first
	channels []*eventFile
	cancel   func() // cancels the subscription to the port's and the device's events
	ended    bool
}

// subscribeAll subscribes to events of the port and the device.
func (s *eventSet) subscribeAll(n *simnic.NIC) {
	cancel := n.Subscribe(s.passDeviceEvent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
}

func (s *eventSet) addAsync(e *eventFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.async = append(s.async, e)
}

func (s *eventSet) addChannel(e *eventFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = append(slices.DeleteFunc(s.channels, (*eventFile).abandoned), e)
}

// asyncFile returns the descriptor to which an object created now reports, nil if there is none
// yet.
func (s *eventSet) asyncFile() *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.async) == 0 {
		return nil
	}
	return s.async[0]
}

// channelOf finds the completion channel of the client's descriptor.
func (s *eventSet) channelOf(fd int) *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.channels {
		if e.hasFD(fd) {
			return e
		}
	}
	return nil
}

// passDeviceEvent passes on events of the port and the device. A fatal one is the last: the kernel
// then removes the device, and the descriptors read end of file.
func (s *eventSet) passDeviceEvent(ev simnic.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.async {
		switch ev.Type {
		case simnic.EventPortUp:
			e.postAsync(uverbs.EventPortActive, uint64(ev.Port))
		case simnic.EventPortDown:
			e.postAsync(uverbs.EventPortError, uint64(ev.Port))
		case simnic.EventDeviceFatal:
			e.postAsync(uverbs.EventDeviceFatal, 0)
		}
	}
	if ev.Type == simnic.EventDeviceFatal {
		s.endFiles()
	}
}

func (s *eventSet) endFiles() {
	if s.ended {
		return
	}
	s.ended = true
	for _, e := range append(s.async, s.channels...) {
		e.closeOurEnd()
	}
}

// closeAll ends the subscription and all descriptors.
func (s *eventSet) closeAll() {
	s.mu.Lock()
	cancel := s.cancel
	s.cancel = nil
	s.endFiles()
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// eventQueue represents an event descriptor without a file (uverbs.EventQueue). The kernel posts
// and ends, the client reads and closes.
type eventQueue struct {
	ready chan struct{} // holds one token

	mu      sync.Mutex // covers what follows
	records [][]byte
	ended   bool // by the kernel
	closed  bool // by the client
}

var _ uverbs.EventQueue = (*eventQueue)(nil)

// firstQueue gives the number of the first event queue of a node: no descriptor is that large
// (nr_open of linux is 2^20).
const firstQueue = 1 << 30

// newEventFile returns an event descriptor for the client, of the kind that the configuration says.
func (n *node) newEventFile(name string) (*eventFile, unix.Errno) {
	if !n.linux.cfg.EventQueues {
		return newEventFile(name)
	}
	q := &eventQueue{ready: make(chan struct{}, 1)}
	n.queues.mu.Lock()
	defer n.queues.mu.Unlock()
	n.queues.all = append(n.queues.all, q)
	return &eventFile{queue: q, fd: firstQueue + len(n.queues.all) - 1}, 0
}

// eventQueues holds the event queues of a node, by number.
type eventQueues struct {
	mu  sync.Mutex
	all []*eventQueue // guarded by mu
}

// EventQueue implements uverbs.EventQueues.
func (n *node) EventQueue(fd int) uverbs.EventQueue {
	n.queues.mu.Lock()
	defer n.queues.mu.Unlock()
	if i := fd - firstQueue; i >= 0 && i < len(n.queues.all) {
		return n.queues.all[i]
	}
	return nil
}

// appendRecord appends a copy of a record.
func (q *eventQueue) appendRecord(record []byte) {
	q.mu.Lock()
	if !q.ended && !q.closed && len(q.records) < maxBacklog {
		q.records = append(q.records, slices.Clone(record))
	}
	q.mu.Unlock()
	q.Wake()
}

// endRecords makes the client read the end behind the records.
func (q *eventQueue) endRecords() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.Wake()
}

// Read implements uverbs.EventQueue.
func (q *eventQueue) Read(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.records) > 0:
		n := copy(b, q.records[0])
		q.records = q.records[1:]
		return n, nil
	case q.ended:
		return 0, nil
	}
	return 0, unix.EAGAIN
}

// Ready implements uverbs.EventQueue.
func (q *eventQueue) Ready() <-chan struct{} { return q.ready }

// Wake implements uverbs.EventQueue.
func (q *eventQueue) Wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Close implements uverbs.EventQueue.
func (q *eventQueue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.records = true, nil
	return nil
}

// abandoned reports whether the client closed the queue.
func (q *eventQueue) abandoned() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
