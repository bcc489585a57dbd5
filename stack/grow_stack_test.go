package stack

import (
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

// TestGrowStack compares what the stacks of goroutines take that wait for a connection's first
// data, and then for more of it: they have grown once there was some.
func TestGrowStack(t *testing.T) {
	runtime.GC() // what tests before have left is free
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const conns = 100
	r := newDirectRig(t, false)
	l, err := r.receiver.Listen("tcp", ":80")
	must(t, err)
	defer l.Close()
	var served, first sync.WaitGroup
	first.Add(conns)
	var clients []net.Conn
	for range conns {
		c, err := r.sender.Dial("tcp", "192.0.2.2:80")
		must(t, err)
		clients = append(clients, c)
		s, err := l.Accept()
		must(t, err)
		served.Go(func() {
			defer s.Close()
			b := make([]byte, 1)
			_, err := s.Read(b)
			first.Done()
			if err == nil {
				_, _ = s.Read(b)
			}
		})
	}
	stacks := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse
	}
	idle := stacks()
	for _, c := range clients {
		_, err := c.Write([]byte("x"))
		must(t, err)
	}
	first.Wait()
	if grown := int(stacks()-idle) / conns; grown < len(stackFrame{})/2 {
		t.Errorf("stacks have grown by %d bytes each", grown)
	}
	for _, c := range clients {
		must(t, c.Close())
	}
	served.Wait()
}
