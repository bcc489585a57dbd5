package dnsd

import (
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// tcpConn describes a connection of the table.
type tcpConn struct {
	net.Conn
	since time.Time // when it began to wait for a query; guarded by the table's mu
}

// tcpTable holds the TCP connections of a server.
type tcpTable struct {
	clock clock.Clock

	mu      sync.Mutex
	open    map[*tcpConn]*list.Element // its place in waiting; nil while a query is answered
	waiting list.List                  // of *tcpConn, the longest idle first
	short   bool                       // the deadlines of those waiting are short
}

// admitConn adds a connection; when there are too many, the one that has been idle longest is
// closed.
// False: all have queries that are being answered.
func (t *tcpTable) admitConn(c *tcpConn, evicted *atomic.Uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) >= maxTCPConns {
		longest := t.waiting.Front()
		if longest == nil {
			return false
		}
		victim := longest.Value.(*tcpConn)
		t.removeConn(victim)
		victim.Close()
		evicted.Add(1)
	}
	t.open[c] = nil
	t.shortenDeadlines()
	return true
}

// shortenDeadlines shortens the deadlines of idle connections when more than half of the table is
// in use. Connections that become idle while it is not get long ones.
func (t *tcpTable) shortenDeadlines() {
	crowded := len(t.open) > maxTCPConns/2
	if crowded && !t.short {
		for e := t.waiting.Front(); e != nil; e = e.Next() {
			c := e.Value.(*tcpConn)
			c.SetDeadline(c.since.Add(tcpBusyIdle))
		}
	}
	t.short = crowded
}

// setQueryDeadline sets the deadline of c's next query.
func (t *tcpTable) setQueryDeadline(c *tcpConn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	place, open := t.open[c]
	if !open {
		return net.ErrClosed
	}
	c.since = t.clock.Now()
	if place == nil {
		t.open[c] = t.waiting.PushBack(c)
	}
	if t.short {
		return c.SetDeadline(c.since.Add(tcpBusyIdle))
	}
	return c.SetDeadline(c.since.Add(tcpIdle))
}

// markBusy records that a query of c is being answered.
func (t *tcpTable) markBusy(c *tcpConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if place := t.open[c]; place != nil {
		t.waiting.Remove(place)
		t.open[c] = nil
	}
}

// dropConn removes c; it may be called again.
func (t *tcpTable) dropConn(c *tcpConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeConn(c)
	t.shortenDeadlines()
}

func (t *tcpTable) removeConn(c *tcpConn) {
	if place := t.open[c]; place != nil {
		t.waiting.Remove(place)
	}
	delete(t.open, c)
}
