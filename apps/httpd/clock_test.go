package httpd

import (
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// noting is a connection that takes everything and notes the deadlines of its writes.
type noting struct {
	net.Conn
	deadlines []time.Time
}

func (n *noting) Write(b []byte) (int, error) { return len(b), nil }

func (n *noting) SetWriteDeadline(t time.Time) error {
	n.deadlines = append(n.deadlines, t)
	return nil
}

// TestClock: the deadlines of writes, and the server's uptime, are times of Config.Clock.
func TestClock(t *testing.T) {
	virtual := clocktest.New()
	s, err := New(Config{Clock: virtual.Clock(), Grace: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	virtual.Advance(time.Hour)
	n := &noting{}
	c := &conn{Conn: n, table: &s.table, out: newBudget(s.cfg.MinRate, s.cfg.Grace)}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if want := virtual.Now().Add(time.Minute); len(n.deadlines) != 1 || n.deadlines[0] != want {
		t.Errorf("deadlines %v, want %v", n.deadlines, want)
	}
	if up := s.Counters().UptimeSec; up != 3600 {
		t.Errorf("up for %v s, want an hour", up)
	}
}
