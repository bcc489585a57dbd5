package stack

import (
	"io"
	"net"
	"testing"
)

// TestPacedLooks: a paced write, and each of many small ones, asks for the unsent bytes once for
// each quantum of its rate, and for each time that the windows allow less.
func TestPacedLooks(t *testing.T) {
	for _, size := range []int{100, 1 << 20} {
		r := newDirectRig(t, false)
		ln, err := r.receiver.Listen("tcp4", "192.0.2.2:80")
		must(t, err)
		defer ln.Close()
		go func() {
			if c, err := ln.Accept(); err == nil {
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		conn, err := r.sender.DialTCP("tcp4", nil, ln.Addr().(*net.TCPAddr))
		must(t, err)
		defer conn.Close()
		const rate, total, quantum = 50_000_000, 1 << 20, 8400 // whole segments of 200 us, or more
		p := conn.newPacing(rate, 200_000)
		looks, unsent := 0, p.unsent
		p.unsent = func() int { looks++; return unsent() }
		conn.endPacing(conn.pacing.Swap(p), p)
		for n := 0; n < total; n += size {
			_, err := conn.Write(make([]byte, size))
			must(t, err)
		}
		most := total/quantum + 1 + int(r.sender.Stats().TCPPacingStalls)
		if looks == 0 || looks > most {
			t.Errorf("writes of %d: %d looks, want %d at most", size, looks, most)
		}
	}
}
