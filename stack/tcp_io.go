package stack

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

const (
	// tuneThreshold is how many bytes are read between calls of netstack's receive buffer tuning.
	// It measures bytes per round trip against buffers of 1 MiB and more, and a call takes a lock.
	tuneThreshold = 64 << 10

	// copySize is the unit of ReadFrom and WriteTo: netstack's largest segment.
	copySize = 64 << 10
)

// Read implements net.Conn. io.EOF means that the peer has sent its FIN.
func (c *TCPConn) Read(b []byte) (int, error) {
	n, err := c.read(b)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *TCPConn) read(b []byte) (int, error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	if len(b) == 0 {
		return 0, c.done()
	}
	for {
		if err := c.check(&c.rd); err != nil {
			return 0, err
		}
		n, terr := c.readEndpoint(b)
		switch terr.(type) {
		case nil:
			c.received.Add(uint64(n))
			c.tune(n)
			return n, nil
		case *tcpip.ErrWouldBlock:
			c.rd.park()
		case *tcpip.ErrClosedForReceive:
			return 0, c.orClosedErr(io.EOF)
		default:
			return 0, c.orClosedErr(syscallError("read", terr))
		}
	}
}

// transfer is what netstack reads into and writes from. A connection has one only while it does.
type transfer struct {
	dst tcpip.SliceWriter
	src bytes.Reader
}

var transfers = sync.Pool{New: func() any { return new(transfer) }}

// readEndpoint takes from netstack what there is. It is a function of its own because its frame is
// of 1 KiB, which a goroutine that waits need not keep.
func (c *TCPConn) readEndpoint(b []byte) (int, tcpip.Error) {
	t := transfers.Get().(*transfer)
	t.dst = b
	res, terr := c.ep.Read(&t.dst, tcpip.ReadOptions{})
	t.dst = nil
	transfers.Put(t)
	return res.Count, terr
}

// tune lets the receive buffer grow with the rate. rd.mu is held.
func (c *TCPConn) tune(n int) {
	c.untuned += n
	if c.untuned >= tuneThreshold {
		c.ep.ModerateRecvBuf(c.untuned)
		c.untuned = 0
	}
}

// Write implements net.Conn. It returns when netstack has a copy of all of b, which it sends when
// the windows allow.
func (c *TCPConn) Write(b []byte) (int, error) {
	n, err := c.write(b)
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *TCPConn) write(b []byte) (n int, err error) {
	c.wr.mu.Lock()
	defer c.wr.mu.Unlock()
	t := transfers.Get().(*transfer)
	defer func() {
		t.src.Reset(nil)
		transfers.Put(t)
	}()
	for {
		if err := c.check(&c.wr); err != nil {
			return n, err
		}
		t.src.Reset(b[n:])
		m, terr := c.ep.Write(&t.src, tcpip.WriteOptions{})
		n += int(m)
		c.written.Add(uint64(m))
		switch {
		case terr != nil && !wouldBlock(terr):
			return n, c.orClosedErr(syscallError("write", terr))
		case n == len(b):
			return n, nil
		case terr != nil:
			c.wr.park()
		}
	}
}

// copyBuffers are copySize long.
var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// ReadFrom implements io.ReaderFrom: it sends r until io.EOF, in large pieces and without
// allocating.
func (c *TCPConn) ReadFrom(r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	n, err := io.CopyBuffer(onlyWriter{c}, onlyReader{r}, buf[:])
	return n, c.copyError("readfrom", err)
}

// WriteTo implements io.WriterTo: it passes what is received to w until io.EOF.
func (c *TCPConn) WriteTo(w io.Writer) (int64, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	n, err := io.CopyBuffer(onlyWriter{w}, onlyReader{c}, buf[:])
	return n, c.copyError("writeto", err)
}

// copyError wraps as package net does: the outer operation around the inner one's OpError.
func (c *TCPConn) copyError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return c.opError(op, err)
}

// onlyReader and onlyWriter hide WriteTo and ReadFrom, which would call back here for ever.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
