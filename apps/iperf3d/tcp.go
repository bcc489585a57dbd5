package iperf3d

import (
	"net"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// tcpStream makes a stream of a data connection whose cookie has been read.
func tcpStream(c net.Conn, p *params, at clock.Clock) *stream {
	s := &stream{close: func() { c.Close() }}
	s.run = func(s *stream, stop <-chan struct{}) {
		if s.sends {
			sendTCP(s, c, p, at, stop)
		} else {
			receiveTCP(s, c)
		}
	}
	if d, ok := c.(interface{ SetNoDelay(bool) error }); ok {
		d.SetNoDelay(p.NoDelay)
	}
	return s
}

// sendTCP writes until told to stop or the client closes.
func sendTCP(s *stream, c net.Conn, p *params, at clock.Clock, stop <-chan struct{}) {
	block := make([]byte, blockOf(c, p.Len))
	for i := range block {
		block[i] = byte('0' + i%10)
	}
	pace := newPacer(p.Bandwidth, at)
	for pace.waitUntilDue(s.bytes.Load(), stop) {
		n, err := c.Write(block)
		s.bytes.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// blockOf returns how much is written to c at a time: as asked for, or a little less where that
// fills its packets.
func blockOf(c net.Conn, asked int) int {
	if w, ok := c.(interface{ WriteSize() int }); ok && asked > w.WriteSize() {
		return asked - asked%w.WriteSize()
	}
	return asked
}

// receiveTCP counts until the connection ends; the session closes it at the end of the test.
func receiveTCP(s *stream, c net.Conn) {
	block := make([]byte, max(defaultBlock, 64<<10))
	for {
		n, err := c.Read(block)
		s.bytes.Add(int64(n))
		if err != nil {
			return
		}
	}
}
