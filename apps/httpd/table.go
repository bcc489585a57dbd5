package httpd

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// table holds the connections of a server: those open, at most max, and those closed by the server
// whose last data is in flight, at most a quarter of that.
type table struct {
	clock                               clock.Clock
	max                                 int
	accepted, evicted, refused, tooSlow atomic.Uint64
	unanswered                          atomic.Uint64
	parting                             atomic.Int64 // goroutines of partQuietly
	pieces                              sync.Pool    // of *[piece]byte

	mu        sync.Mutex
	open      map[*conn]*list.Element // its place in waiting; nil while it has a request
	waiting   list.List               // of *conn without a request, the longest waiting first
	lingering list.List               // of lingerer, the oldest first
	shut      bool                    // closed connections linger no more
}

// lingerer holds a closed connection and the timer that resets it.
type lingerer struct {
	c     *conn
	timer clock.Timer
}

// listener returns the connections of a listener that the table admits.
type listener struct {
	net.Listener
	s *Server
}

func (l listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, table: &l.s.table, out: newBudget(l.s.cfg.MinRate, l.s.cfg.Grace)}
		if l.s.table.admitConn(c) {
			return c, nil
		}
		nc.Close()
	}
}

// admitConn adds a connection. When the table is full, the connection that has waited longest
// without a request is closed; when all have requests, the new one is refused.
func (t *table) admitConn(c *conn) bool {
	t.mu.Lock()
	var victim *conn
	if len(t.open) >= t.max {
		longest := t.waiting.Front()
		if longest == nil {
			t.mu.Unlock()
			t.refused.Add(1)
			return false
		}
		victim = longest.Value.(*conn)
		t.dropConn(victim)
	}
	t.open[c] = t.waiting.PushBack(c)
	t.mu.Unlock()
	t.accepted.Add(1)
	if victim != nil {
		t.evicted.Add(1)
		victim.Close()
	}
	return true
}

// dropConn removes a connection; it needs mu and may be called again.
func (t *table) dropConn(c *conn) {
	if e := t.open[c]; e != nil {
		t.waiting.Remove(e)
	}
	delete(t.open, c)
}

// onConnState implements the ConnState hook of http.Server.
func (t *table) onConnState(nc net.Conn, state http.ConnState) {
	c := nc.(*conn)
	t.mu.Lock()
	defer t.mu.Unlock()
	place, open := t.open[c]
	switch {
	case !open:
	case state == http.StateActive && place != nil:
		t.waiting.Remove(place)
		t.open[c] = nil
		c.used = true
		c.quiet.asked.Store(true)
		c.quiet.ahead.Store(false)
	case state == http.StateIdle && place == nil:
		t.open[c] = t.waiting.PushBack(c)
		c.quiet.asked.Store(c.quiet.ahead.Load())
	case state == http.StateClosed:
		t.dropConn(c)
	}
}

// connCount returns the number of open connections.
func (t *table) connCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// lingerConn gives c's data the time d to arrive and then resets c, or earlier when there are too
// many such connections. False: c must be closed at once.
func (t *table) lingerConn(c *conn, d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut || !c.closeWrite() {
		return false
	}
	e := t.lingering.PushBack(nil)
	e.Value = lingerer{c, t.clock.AfterFunc(d, func() { t.endLinger(e) })}
	if t.lingering.Len() > max(t.max/4, 1) {
		if oldest, there := t.takeLingerer(t.lingering.Front()); there {
			go oldest.endLingerer()
		}
	}
	return true
}

// takeLingerer removes e's connection, whose end is the caller's; false when another has it
// already. The caller holds mu.
func (t *table) takeLingerer(e *list.Element) (lingerer, bool) {
	l, there := e.Value.(lingerer)
	if there {
		t.lingering.Remove(e)
		e.Value = nil
	}
	return l, there
}

// endLinger ends e's connection when its time is over.
func (t *table) endLinger(e *list.Element) {
	t.mu.Lock()
	l, there := t.takeLingerer(e)
	t.mu.Unlock()
	if there {
		l.endLingerer()
	}
}

func (l lingerer) endLingerer() {
	l.timer.Stop()
	l.c.resetConn()
}

// releaseAll releases the lingering connections: their stack delivers the rest. From now on none
// linger.
func (t *table) releaseAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut = true
	for e := t.lingering.Front(); e != nil; e = e.Next() {
		l := e.Value.(lingerer)
		e.Value = nil
		l.timer.Stop()
		l.c.Conn.Close()
	}
	t.lingering.Init()
}
