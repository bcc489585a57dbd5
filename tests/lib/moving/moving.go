// Package moving fails tests that wait for a stalled connection, instead of letting them hang.
package moving

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// Limit is the longest time without progress on a connection that has work. A running
// retransmission timer has expired several times by then.
const Limit = 5 * time.Second

// ErrStopped is the error of a Read or Write without progress for too long.
var ErrStopped = errors.New("nothing has moved")

// piece is the number of bytes written at a time, so that progress is visible.
const piece = 16 << 10

// conn is a connection that must make progress.
type conn struct {
	net.Conn
	meter *Meter
	limit time.Duration
}

// Conn wraps c: a Read that receives nothing, or a Write that sends nothing more, for the time
// limit fails with ErrStopped, unless meter counts progress meanwhile: connections that compete for
// a link or a processor share one, and each counts its progress there. It is for work in progress:
// a Read while the peer has nothing to send fails, too. Deadlines are the wrapper's. Its methods
// may be called like those of c.
func Conn(c net.Conn, meter *Meter, limit time.Duration) net.Conn { return &conn{c, meter, limit} }

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	return c.try("received", c.SetReadDeadline, func() (int, error) { return c.Conn.Read(b) })
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(b)); first = false {
		var m int
		m, err = c.try("sent", c.SetWriteDeadline,
			func() (int, error) { return c.Conn.Write(b[n:min(n+piece, len(b))]) })
		n += m
	}
	return n, err
}

// try calls op, each time with a deadline of the limit, until it makes progress or fails, or there
// is no progress anywhere.
func (c *conn) try(what string, deadline func(time.Time) error,
	op func() (int, error)) (int, error) {
	for {
		before := c.meter.count()
		if err := deadline(time.Now().Add(c.limit)); err != nil {
			return 0, err
		}
		n, err := op()
		if n > 0 {
			c.meter.Move()
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return n, err
		}
		if n > 0 {
			return n, nil
		}
		if c.meter.count() == before {
			return 0, fmt.Errorf("%w: %s to %s has %s nothing for %v", ErrStopped, c.LocalAddr(),
				c.RemoteAddr(), what, c.limit)
		}
	}
}
