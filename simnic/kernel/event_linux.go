package kernel

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// eventFile is the kernel's side of an event descriptor. The client's side is the other end of a
// socket pair that preserves message boundaries: one read returns one event. The client owns its
// end and may close it at any time.
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
