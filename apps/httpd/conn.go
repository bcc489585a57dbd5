package httpd

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// piece is the largest write whose progress is not checked, in bytes. At the floor it takes
	// less than the grace time.
	piece = 64 << 10
	// residue is the largest part of a closed connection that the network stack may still send, in
	// bytes.
	maxUnsent = 64 << 10
	// maxOwed is the largest send buffer that is assumed, in bytes.
	maxOwed = 4 << 20
)

// conn is an accepted connection that its peer must keep moving. Writes have a deadline that
// progress renews; one of net/http's goroutines writes at a time. Close documents what happens to
// data that the peer has not received.
type conn struct {
	net.Conn
	table *table
	out   budget // used by the writer
	quiet quiet
	used  bool // it has had a request; guarded by table.mu

	late   atomic.Bool // the peer missed the deadline of a write
	closed atomic.Bool

	mu   sync.Mutex
	owed int64     // bytes that the peer may not have received yet if it reads at the floor
	sent int64     // total bytes written
	at   time.Time // time of owed
}

// Write sends p in pieces, each with the deadline that the progress so far allows.
func (c *conn) Write(p []byte) (n int, err error) {
	for {
		m, err := c.writePiece(p[n:min(len(p), n+piece)])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

func (c *conn) writePiece(p []byte) (int, error) {
	clock := c.table.clock
	began := clock.Now()
	if err := c.Conn.SetWriteDeadline(began.Add(c.out.left)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	ended := clock.Now()
	c.out.waited(ended.Sub(began), n)
	c.wrote(n, ended)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.late.Store(true)
		c.table.tooSlow.Add(1)
	}
	return n, err
}

func (c *conn) wrote(n int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = min(c.stillOwed(now)+int64(n), maxOwed)
	c.sent += int64(n)
	c.at = now
}

// stillOwed needs mu.
func (c *conn) stillOwed(now time.Time) int64 {
	return max(0, c.owed-int64(now.Sub(c.at).Seconds()*float64(c.out.floor)))
}

// Close ends the connection so that nothing of it stays for long. Data that the peer has not read
// would remain in the send buffer for as long as the peer answers the stack's probes:
//   - a peer that missed the deadline of a write gets a reset;
//   - else, if the buffer may hold much, the peer has the time that the floor gives it for that,
//     and then gets a reset, which is nothing to one that has everything;
//   - else the stack delivers the rest.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	if c.late.Load() {
		return c.reset()
	}
	if c.endedQuiet() && c.table.partQuietly(c) {
		return nil
	}
	c.mu.Lock()
	owed, sent := c.stillOwed(c.table.clock.Now()), c.sent
	c.mu.Unlock()
	if sent > maxUnsent && c.table.linger(c, timeFor(owed, c.out.floor)+time.Second) {
		return nil
	}
	return c.Conn.Close()
}

// reset closes the connection and discards unsent data, where the connection can.
func (c *conn) reset() error {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0) // it fails on a closed connection, as Close will
	}
	return c.Conn.Close()
}

// closeWrite sends a FIN after the data and wakes a read in progress; false when the connection
// cannot.
func (c *conn) closeWrite() bool {
	w, ok := c.Conn.(interface{ CloseWrite() error })
	return ok && c.Conn.SetDeadline(time.Unix(1, 0)) == nil && w.CloseWrite() == nil
}
