// Package moving fails what waits for a connection that has stopped, instead of waiting on.
package moving

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Limit is how long nothing may move on a connection while there is work. A retransmission timer
// that runs has had several turns by then.
const Limit = 5 * time.Second

// ErrStopped is the error of a Read or Write in which nothing has moved for too long.
var ErrStopped = errors.New("nothing has moved")

// piece is how much is written at a time, in bytes, so that what moves can be seen.
const piece = 16 << 10

// conn is a connection that has to move.
type conn struct {
	net.Conn
	limit time.Duration
}

// Conn wraps c: a Read that gets nothing, or a Write that gets rid of no more, for the time limit
// fails with ErrStopped. It is for work in progress: a Read while the peer has nothing to say
// fails, too. Deadlines are the wrapper's. Its methods may be called as those of c.
func Conn(c net.Conn, limit time.Duration) net.Conn { return &conn{c, limit} }

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	return n, c.explain("received", err)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(b)); first = false {
		if err = c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			break
		}
		var m int
		m, err = c.Conn.Write(b[n:min(n+piece, len(b))])
		n += m
	}
	return n, c.explain("sent", err)
}

// explain says what a deadline means.
func (c *conn) explain(what string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %s to %s has %s nothing for %v", ErrStopped, c.LocalAddr(),
			c.RemoteAddr(), what, c.limit)
	}
	return err
}
