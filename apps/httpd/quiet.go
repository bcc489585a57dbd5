package httpd

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// quiet is whether a connection waits for a request. net/http takes it for idle until it has all
// headers; by this nothing is ended that has begun to ask.
type quiet struct {
	asked atomic.Bool // some of a request was read; set with mu held, but for requests under way

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
	if q := &c.quiet; n > 0 && !q.asked.Load() {
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

// lastLook says whether to read once more, for lastPoll: the end of a read by endQuiet hides what
// had come.
func (c *conn) lastLook() bool {
	q := &c.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended || q.last {
		return false
	}
	q.last = true
	return c.Conn.SetReadDeadline(c.table.clock.Now().Add(lastPoll)) == nil
}

// endQuiet has a read in progress return if nothing of a request has come: net/http then closes the
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
		asked := false
		for b := make([]byte, 512); ; {
			n, err := c.Conn.Read(b)
			if n > 0 && !asked {
				asked = true
				t.unanswered.Add(1)
			}
			if err != nil {
				return
			}
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
