package httpd

import (
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

const (
	// piece gives the largest write whose progress is not checked, in bytes. At the floor it takes
	// less than the grace time.
	piece = 64 << 10
	// residue gives the largest part of a closed connection that the network stack may still send,
	// in bytes.
	maxUnsent = 64 << 10
	// maxOwed gives the largest send buffer that is assumed, in bytes.
	maxOwed = 4 << 20
)

// conn represents an accepted connection that its peer must keep moving. Writes have a deadline
// that progress renews; one of net/http's goroutines writes at a time. Close documents what happens
// to data that the peer has not received.
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
		m, err := c.writePiece(p[n:min(len(p), n+pieceOf(c.Conn, len(p)))])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// ReadFrom implements io.ReaderFrom, by which net/http sends files: in pieces as Write's, where it
// would itself write 32 KiB at a time.
func (c *conn) ReadFrom(src io.Reader) (int64, error) {
	buf := c.table.pieces.Get().(*[piece]byte)
	defer c.table.pieces.Put(buf)
	return io.CopyBuffer(onlyWriter{c}, onlyReader{src}, buf[:pieceOf(c.Conn, piece)])
}

// onlyWriter and onlyReader hide ReadFrom and WriteTo.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// pieceOf returns how much of size is written to c at a time: piece, or less where that fills its
// packets. For little it does not take the lock of the connection.
func pieceOf(c net.Conn, size int) int {
	if p, ok := c.(interface{ WriteSize() int }); ok && size > 16<<10 {
		return min(piece, p.WriteSize())
	}
	return piece
}

func (c *conn) writePiece(p []byte) (int, error) {
	clock := c.table.clock
	began := clock.Now()
	if err := c.Conn.SetWriteDeadline(began.Add(c.out.left)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	ended := clock.Now()
	c.out.creditTime(ended.Sub(began), n)
	c.countWritten(n, ended)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.late.Store(true)
		c.table.tooSlow.Add(1)
	}
	return n, err
}

func (c *conn) countWritten(n int, now time.Time) {
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
		return c.resetConn()
	}
	if c.endedQuiet() && c.table.partQuietly(c) {
		return nil
	}
	c.mu.Lock()
	owed, sent := c.stillOwed(c.table.clock.Now()), c.sent
	c.mu.Unlock()
	if sent > maxUnsent && c.table.lingerConn(c, timeFor(owed, c.out.floor)+time.Second) {
		return nil
	}
	return c.Conn.Close()
}

// resetConn closes the connection and discards unsent data, where the connection can.
func (c *conn) resetConn() error {
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

// quiet says whether a connection waits for a request. net/http takes it for idle until it has all
// headers; by this nothing is ended that has begun to ask.
type quiet struct {
	asked atomic.Bool // some of a request was read; set with mu held, but for requests under way
	// ahead says that a byte was read while a request was being answered: the next one has begun.
	// net/http looks for the end of the connection like that, by reads of one byte, of which there
	// are no others once it has the headers.
	ahead atomic.Bool

	mu    sync.Mutex
	ended bool // a read in progress was told to return; guarded by mu
	last  bool // that has happened, and one more look is taken; guarded by mu
}

// Read notes that a request has begun. It goes on although its connection was to end: nothing of
// the end has been sent.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.lastLook() {
		n, err = c.Conn.Read(p)
	}
	q := &c.quiet
	if n == 1 && len(p) == 1 {
		q.ahead.Store(true)
	}
	if n > 0 && !q.asked.Load() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.asked.Store(true)
		if q.ended {
			q.ended, q.last = false, false
			err = c.Conn.SetReadDeadline(c.table.clock.Now().Add(headerTimeout))
		}
	}
	return n, err
}

// lastLook says whether to read once more: the end of a read by endQuiet hides what had come. If
// the connection does not tell what is unread, the look takes lastPoll; a goroutine that does not
// run meanwhile misses it.
func (c *conn) lastLook() bool {
	q := &c.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended || q.last {
		return false
	}
	waits, known := unread(c.Conn)
	if known && !waits {
		return false
	}
	q.last = true
	until := time.Time{} // what is there is read at once
	if !known {
		until = c.table.clock.Now().Add(lastPoll)
	}
	return c.Conn.SetReadDeadline(until) == nil
}

// unread says whether a connection has bytes that can be read without waiting, if it can tell.
func unread(c net.Conn) (waits, known bool) {
	switch c := c.(type) {
	case interface{ Buffered() int }:
		return c.Buffered() > 0, true
	case syscall.Conn:
		raw, err := c.SyscallConn()
		if err != nil {
			return false, false
		}
		return unreadOf(raw)
	}
	return false, false
}

// endQuiet ends a read in progress if nothing of a request has come: net/http then closes the
// connection. It may be called again, as net/http sets deadlines, too.
func (c *conn) endQuiet() {
	q := &c.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.asked.Load() && !q.last {
		q.ended = true
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // else the connection is closed
	}
}

// endedQuiet says whether a connection that is closed ends for endQuiet.
func (c *conn) endedQuiet() bool {
	c.quiet.mu.Lock()
	defer c.quiet.mu.Unlock()
	return c.quiet.ended
}

// partQuietly ends a connection without a request by a FIN, and waits for that of the client: a
// request may be on its way, and a closed connection would answer it with a reset. False: the
// connection must be closed.
func (t *table) partQuietly(c *conn) bool {
	if !c.closeWrite() {
		return false
	}
	t.parting.Add(1)
	go func() {
		defer t.parting.Add(-1)
		defer c.Conn.Close()
		if c.Conn.SetReadDeadline(t.clock.Now().Add(lastRequests)) != nil {
			return
		}
		asked, err := false, error(nil)
		read := func() (n int) {
			var b [512]byte
			if n, err = c.Conn.Read(b[:]); n > 0 && !asked {
				asked = true
				t.unanswered.Add(1)
			}
			return n
		}
		for err == nil {
			read()
		}
		// Some may have come while this goroutine did not run.
		for left := maxUnsent; left > 0 && errors.Is(err, os.ErrDeadlineExceeded); {
			if waits, _ := unread(c.Conn); !waits || c.Conn.SetReadDeadline(time.Time{}) != nil {
				return
			}
			left -= read()
			err = cmp.Or(err, os.ErrDeadlineExceeded)
		}
	}()
	return true
}

// endQuiet ends those that wait for a request, and, if they are to be spared, have had none.
func (t *table) endQuiet(spare func(*conn) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.waiting.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); !spare(c) {
			c.endQuiet()
		}
	}
}

// budget says how long a peer may still delay a transfer. It starts at most, waiting time is
// subtracted, and every floor bytes moved add one second, up to most again. A peer that moves floor
// bytes per second or more never uses it up; a slower one lasts for most and a little longer. It
// belongs to the goroutine that moves the bytes.
type budget struct {
	floor int64 // bytes per second
	most  time.Duration
	left  time.Duration
}

func newBudget(floor int64, most time.Duration) budget {
	return budget{floor: floor, most: most, left: most}
}

// creditTime subtracts d and adds the time of the n bytes that moved meanwhile.
func (b *budget) creditTime(d time.Duration, n int) {
	b.left = min(b.left-d+timeFor(int64(n), b.floor), b.most)
}

// timeFor returns how long n bytes take at rate bytes per second.
func timeFor(n, rate int64) time.Duration {
	return time.Duration(n/rate)*time.Second + time.Duration(n%rate)*time.Second/time.Duration(rate)
}

// paced represents a request's body that must arrive at the floor's rate or faster.
type paced struct {
	io.ReadCloser
	rc      *http.ResponseController
	in      budget
	tooSlow *atomic.Uint64
	clock   clock.Clock
}

// Read has the deadline that the progress so far allows. The end of the body has none: a later read
// is net/http's own, for the next request.
func (p *paced) Read(b []byte) (int, error) {
	began := p.clock.Now()
	if err := p.rc.SetReadDeadline(began.Add(p.in.left)); err != nil {
		return 0, err
	}
	n, err := p.ReadCloser.Read(b)
	p.in.creditTime(p.clock.Since(began), n)
	switch {
	case err == io.EOF:
		_ = p.rc.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.tooSlow.Add(1)
	}
	return n, err
}
