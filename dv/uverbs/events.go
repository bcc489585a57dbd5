package uverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// events reads fixed-size records from an event source, without allocating. One read returns
// exactly one record.
type events struct {
	// where they come from: a descriptor in the Go network poller, or a queueSource as all three
	file interface {
		SetReadDeadline(t time.Time) error
		Close() error
	}
	raw  syscall.RawConn
	read func(fd int, b []byte) (int, error)

	announcer *announcer // of a descriptor; nil for a queueSource

	size   int // bytes of a record
	what   string
	closed atomic.Bool

	mu    sync.Mutex // one reader at a time; not taken by wake and close
	told  bool       // of the running call the scheduler is told
	buf   [16]byte   // last record read
	count int        // records read by the running call
	err   error
	one   func(fd uintptr) bool // method values made once, so that reading does not allocate
	all   func(fd uintptr) bool
	rest  func(fd uintptr)
}

// newEvents takes over fd, a number in a reply of k, also on failure.
func newEvents(k Kernel, fd, size int, what string) (*events, error) {
	e := &events{size: size, what: what}
	if q := queueOf(k, fd); q != nil {
		s := &queueSource{queue: q}
		e.file, e.raw, e.read = s, s, func(_ int, b []byte) (int, error) { return q.Read(b) }
	} else if err := e.openPolled(fd); err != nil {
		return nil, fmt.Errorf("set up %s: %w", what, err)
	}
	e.one, e.all, e.rest = e.readOne, e.readAll, e.readRest
	return e, nil
}

// openPolled puts fd into the network poller. It takes over fd, also on failure.
func (e *events) openPolled(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return err
	}
	f := os.NewFile(uintptr(fd), e.what)
	e.file, e.read, e.announcer = f, e.readPolled, newAnnouncer(clock.Clock{})
	err := f.SetReadDeadline(time.Time{}) // fails if the poller did not take the descriptor
	if err == nil {
		e.raw, err = f.SyscallConn()
	}
	if err != nil {
		f.Close()
	}
	return err
}

// readPolled reads from the descriptor, which does not block.
func (e *events) readPolled(fd int, b []byte) (int, error) {
	if e.told {
		return unix.Read(fd, b)
	}
	return readUntold(fd, b)
}

// tellSometimes tells the scheduler of the wait that begins if that is due. e.mu is held.
func (e *events) tellSometimes() { e.told = e.announcer == nil || e.announcer.announce() }

// readRecord reads one record. It returns false if there is none.
func (e *events) readRecord(fd int) bool {
	for {
		n, err := e.read(fd, e.buf[:e.size])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil:
			e.err = err
		case n != e.size:
			e.err = unix.EIO // end of file, or not an event descriptor
		default:
			e.count++
		}
		return true
	}
}

// readOne ends when one record was read; the poller parks the goroutine as long as it returns
// false.
func (e *events) readOne(fd uintptr) bool { return e.readRecord(int(fd)) }

// readAll ends when at least one record was read and no more are there.
func (e *events) readAll(fd uintptr) bool {
	e.readRest(fd)
	return e.count > 0 || e.err != nil
}

// readRest reads what is there.
func (e *events) readRest(fd uintptr) {
	for e.err == nil && e.readRecord(int(fd)) {
	}
}

// waitRecords parks until f is content, or wake or close is called. It returns the number of
// records read, 0 after wake; the last of them is in e.buf. e.mu is held.
func (e *events) waitRecords(f func(uintptr) bool) (int, error) {
	e.count, e.err = 0, nil
	err := e.raw.Read(f)
	if e.err != nil {
		err = e.err
	}
	if err == nil {
		return e.count, nil
	}
	if e.count == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, e.file.SetReadDeadline(time.Time{})
	}
	return e.count, e.explainFailure(err)
}

// drainRecords reads what is there without parking. e.mu is held.
func (e *events) drainRecords() (int, error) {
	e.count, e.err, e.told = 0, nil, true
	err := e.raw.Control(e.rest)
	if err == nil {
		err = e.err
	}
	if err != nil {
		return e.count, e.explainFailure(err)
	}
	return e.count, nil
}

// explainFailure tells closing from failing.
func (e *events) explainFailure(err error) error {
	if e.closed.Load() {
		return fmt.Errorf("read %s: %w", e.what, ErrClosed)
	}
	return kernelFailure(opReadEvent, e.what, err, memory{})
}

// wakeWaiter makes the running wait, or else the next one, return at once with 0 records.
func (e *events) wakeWaiter() {
	e.file.SetReadDeadline(time.Unix(1, 0)) // fails after close only, when wait returns anyway
}

// close closes the descriptor; a running or later wait returns ErrClosed. Closing again returns
// nil.
func (e *events) close() error {
	if e.closed.Swap(true) {
		return nil
	}
	if e.announcer != nil {
		e.announcer.stop()
	}
	return e.file.Close()
}
