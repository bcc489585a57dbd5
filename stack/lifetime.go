package stack

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// lifetime says how far a stack has come.
type lifetime struct {
	// live guards the end of the stack: what makes an endpoint reads under it, Close writes, so
	// that Close sees every endpoint.
	live   sync.RWMutex
	closed atomic.Bool
	ctx    context.Context // cancelled by Close
	cancel context.CancelFunc
	cause  error         // why the stack ended by itself; written before closed is set
	ended  chan struct{} // closed when nothing of the stack is left
	err    error         // of the device's Close; written before ended is closed

	draining   atomic.Bool // Drain was called
	background sync.WaitGroup
	watched    chan struct{} // closed when the uplink's watcher has ended; nil unless made by Open
}

func (l *lifetime) begin() {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.ended = make(chan struct{})
}

// enter keeps the stack from ending until leave is called; an error says that it has ended.
func (l *lifetime) enter() (leave func(), err error) {
	l.live.RLock()
	if err := l.done(); err != nil {
		l.live.RUnlock()
		return nil, err
	}
	return l.live.RUnlock, nil
}

// end notes the end and its cause, and reports whether it is the first.
func (l *lifetime) end(cause error) (first bool) {
	l.live.Lock()
	defer l.live.Unlock()
	if first = !l.closed.Load(); first {
		l.cause = cause
		l.closed.Store(true)
	}
	return first
}

// done returns net.ErrClosed once the stack has ended, with the cause in it if it ended by itself.
func (l *lifetime) done() error {
	switch {
	case !l.closed.Load():
		return nil
	case l.cause != nil:
		return endedError{l.cause}
	}
	return net.ErrClosed
}

// outage says whether there has been no link for longer than Config.Uplink.MaxOutage. Connections
// end then, and new ones are refused, with ENETDOWN. Listeners and UDP sockets stay.
type outage struct {
	now   atomic.Bool
	count atomic.Uint64 // of such outages
}

// begin notes that the limit is reached. A second call does nothing.
func (o *outage) begin() {
	if !o.now.Swap(true) {
		o.count.Add(1)
	}
}

func (o *outage) end() { o.now.Store(false) }

// refuse returns the error of a system call that needs the link, nil if there is one.
func (o *outage) refuse(call string) error {
	if o.now.Load() {
		return os.NewSyscallError(call, syscall.ENETDOWN)
	}
	return nil
}

// since returns ENETDOWN if the limit has been reached since count was n.
func (o *outage) since(n uint64) error {
	if o.count.Load() != n {
		return syscall.ENETDOWN
	}
	return nil
}
