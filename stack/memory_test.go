package stack

import (
	"net"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/waiter"
)

// heapPer is how many bytes of the heap one of n things takes that build makes. keep holds them.
func heapPer(n int, build func(i int) any) int {
	keep := make([]any, n)
	runtime.GC()
	runtime.GC() // what pools held
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range keep {
		keep[i] = build(i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(keep)
	return (int(after.HeapAlloc) - int(before.HeapAlloc)) / n
}

// TestIdleConnIsSmall: a connection that has been read from and written to, as net/http's are,
// takes little besides netstack's endpoint.
func TestIdleConnIsSmall(t *testing.T) {
	s, _ := onSink(t)
	ep := &fullEndpoint{payload: make([]byte, 1000)}
	at := &net.TCPAddr{}
	var buf [1000]byte
	n := heapPer(2000, func(int) any {
		ep.q, ep.blocks = new(waiter.Queue), false
		c := &TCPConn{ep: ep, laddr: at, raddr: at}
		c.stack = s
		register(ep.q, &c.events, tcpEvents{c}, readEvents|writeEvents)
		s.conns.add(c)
		must(t, c.SetReadDeadline(time.Time{}))
		must(t, c.SetReadDeadline(time.Unix(1, 0)))
		must(t, c.SetReadDeadline(time.Time{}))
		_, err := c.Read(buf[:])
		must(t, err)
		_, err = c.Write(buf[:100])
		must(t, err)
		return c
	})
	if n > 430 { // the connection 224, parking 64, netstack's queue of waiters 48
		t.Errorf("a connection takes %d bytes, want 336", n)
	}
}
