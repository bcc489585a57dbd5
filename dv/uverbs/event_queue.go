package uverbs

import (
	"os"
	"sync/atomic"
	"time"
)

// EventQueues may be implemented by a Kernel whose event descriptors are queues in the memory of
// this process, as a simulation needs them: a goroutine that waits in the Go network poller looks
// idle although its event has come.
type EventQueues interface {
	// EventQueue returns the queue whose number a reply has in place of a descriptor, nil if fd is
	// a descriptor.
	EventQueue(fd int) EventQueue
}

// EventQueue is an event descriptor without a file. The client closes it.
type EventQueue interface {
	// Read moves the oldest record into b. The error is EAGAIN if there is none; 0 bytes are the
	// end.
	Read(b []byte) (int, error)
	// Ready has a token in it when Read may have something, or Wake was called. It has one reader.
	Ready() <-chan struct{}
	// Wake puts a token into Ready.
	Wake()
	// Close drops the records. There will be no others.
	Close() error
}

// queueOf returns the queue of k with that number, nil if fd is a descriptor.
func queueOf(k Kernel, fd int) EventQueue {
	if q, ok := k.(EventQueues); ok {
		return q.EventQueue(fd)
	}
	return nil
}

// queueSource presents an EventQueue as file and RawConn of events.
type queueSource struct {
	queue  EventQueue
	woken  atomic.Bool // the deadline is in the past
	closed atomic.Bool
}

// Read calls f until it returns true, and waits for records in between.
func (s *queueSource) Read(f func(fd uintptr) bool) error {
	for {
		switch {
		case s.closed.Load():
			return os.ErrClosed
		case s.woken.Load():
			return os.ErrDeadlineExceeded
		case f(0):
			return nil
		}
		<-s.queue.Ready()
	}
}

// Write is not for event sources.
func (s *queueSource) Write(func(fd uintptr) bool) error { return os.ErrInvalid }

// Control calls f.
func (s *queueSource) Control(f func(fd uintptr)) error {
	if s.closed.Load() {
		return os.ErrClosed
	}
	f(0)
	return nil
}

// SetReadDeadline ends the running Read and later ones, unless t is zero. Other times are in the
// past.
func (s *queueSource) SetReadDeadline(t time.Time) error {
	s.woken.Store(!t.IsZero())
	if !t.IsZero() {
		s.queue.Wake()
	}
	return nil
}

// Close ends the running Read.
func (s *queueSource) Close() error {
	s.closed.Store(true)
	s.queue.Wake()
	return s.queue.Close()
}
