//go:build linux

package unmodified

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// dataPair carries the data of a connection by a socket pair to functions that read(2) and
// write(2) a descriptor.
type dataPair struct {
	theirs, ours int
	ended        bool // theirs reads the end, or an error, from now on
}

func newDataPair() (*dataPair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|
		unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return &dataPair{theirs: fds[0], ours: fds[1]}, nil
}

func (p *dataPair) close() {
	unix.Close(p.theirs)
	if p.ours >= 0 {
		unix.Close(p.ours)
	}
}

// end lets theirs read the end of the stream, or ECONNRESET, which is what a unix socket reads
// whose peer was closed with data unread.
func (p *dataPair) end(err error) {
	if p.ended {
		return
	}
	p.ended = true
	if err == io.EOF {
		unix.Shutdown(p.ours, unix.SHUT_WR)
		return
	}
	unix.Write(p.theirs, []byte{0})
	unix.Close(p.ours)
	p.ours = -1
}

// RawRead implements syscall.RawConn: f reads the data that have come from a descriptor. What it
// leaves says what the next Read returns. It waits while f returns false.
func (c *tcpSocket) RawRead(f func(fd uintptr) bool) error {
	for {
		done, err := c.readOnce(f)
		if done || err != nil {
			return err
		}
		var b [1]byte
		n, err := c.c.Read(b[:]) // waits, until the read deadline at most
		if n == 0 && err != io.EOF && !isEnd(bareError(err)) {
			return bareError(err)
		}
		if n > 0 {
			c.raw.Lock()
			c.back = append(c.back, b[0])
			c.hasBack.Store(true)
			c.unlockRaw()
		}
	}
}

// isEnd reports whether err is one that read(2) returns, rather than package net.
func isEnd(err error) bool {
	_, ok := err.(*os.SyscallError)
	return ok
}

// readOnce runs f once.
func (c *tcpSocket) readOnce(f func(fd uintptr) bool) (done bool, err error) {
	c.raw.Lock()
	defer c.unlockRaw()
	if err := c.openPair(); err != nil {
		return false, err
	}
	buffer := buffers64K.Get().(*[joinedSize]byte)
	defer buffers64K.Put(buffer)
	if len(c.back) < len(buffer) {
		n, err := c.c.TryRead(buffer[:len(buffer)-len(c.back)])
		c.back = append(c.back, buffer[:n]...)
		switch {
		case err == nil || err == unix.EAGAIN:
		case err != io.EOF && !isEnd(err):
			return false, err // the deadline has passed, or the conn is closed
		case len(c.back) == 0:
			c.pair.end(err)
		}
	}
	if len(c.back) == 0 || c.pair.ours < 0 {
		return f(uintptr(c.pair.theirs)), nil
	}
	n, _ := unix.Write(c.pair.ours, c.back) // what does not fit waits
	rest := c.back[max(n, 0):]
	done = f(uintptr(c.pair.theirs))
	left, _, _ := unix.Recvfrom(c.pair.theirs, buffer[:], unix.MSG_DONTWAIT)
	c.back = append(append([]byte(nil), buffer[:max(left, 0)]...), rest...)
	c.hasBack.Store(len(c.back) > 0)
	return done, nil
}

// openPair makes the pair. c.raw is held.
func (c *tcpSocket) openPair() (err error) {
	if c.gone.Load() {
		return net.ErrClosed
	}
	if c.pair == nil {
		c.pair, err = newDataPair()
	}
	return err
}

// RawWrite implements syscall.RawConn: what f writes to a descriptor is sent.
func (c *tcpSocket) RawWrite(f func(fd uintptr) bool) error {
	for {
		done, wrote, err := c.writeOnce(f)
		if done || err != nil {
			return err
		}
		if wrote == 0 {
			// f has written nothing to an empty descriptor: it waits for something else.
			time.Sleep(rawPause)
		}
	}
}

// rawPause says how long a RawWrite whose function has not written waits to call it again.
const rawPause = time.Millisecond

// writeOnce runs f once and sends what it has written.
func (c *tcpSocket) writeOnce(f func(fd uintptr) bool) (done bool, wrote int, err error) {
	c.raw.Lock()
	defer c.unlockRaw()
	if err := c.openPair(); err != nil {
		return false, 0, err
	}
	if c.pair.ours < 0 {
		return f(uintptr(c.pair.theirs)), 0, nil
	}
	done = f(uintptr(c.pair.theirs))
	buffer := buffers64K.Get().(*[joinedSize]byte)
	defer buffers64K.Put(buffer)
	for {
		n, err := unix.Read(c.pair.ours, buffer[:])
		if n <= 0 || err != nil {
			return done, wrote, nil
		}
		k, err := c.Write(buffer[:n])
		if wrote += k; err != nil {
			return done, wrote, err
		}
	}
}

// deadline bounds an Accept which waits for several listeners.
type deadline struct {
	mu      sync.Mutex
	at      time.Time
	timer   *time.Timer
	changed chan struct{} // closed when at has passed or is another
	passed  func()        // called when at has passed; may be nil
}

func (d *deadline) init() { d.changed = make(chan struct{}) }

func (d *deadline) set(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at = at
	d.wake()
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() {
			d.mu.Lock()
			d.wake()
			d.mu.Unlock()
			if d.passed != nil {
				d.passed()
			}
		})
	}
}

func (d *deadline) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// expired returns os.ErrDeadlineExceeded, or a channel that is closed when to ask again.
func (d *deadline) expired() (<-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && !time.Now().Before(d.at) {
		return nil, os.ErrDeadlineExceeded
	}
	return d.changed, nil
}
