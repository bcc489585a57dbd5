//go:build linux

package hoststack

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// failure repeats a write until it fails, and returns the error.
func (r *run) failure(c io.Writer) (err error) {
	r.Helper()
	r.until("write fails", func() bool {
		_, err = c.Write([]byte("x"))
		return err != nil
	})
	return err
}

var tcpClose = []behaviour{
	{"the peer reads EOF, and again", func(r *run) {
		c, s := r.pair()
		r.write(s, "last words")
		r.must(s.Close())
		r.readFull("client", c, 10)
		r.noteRead("then", c)
		r.noteRead("again", c)
	}},
	{"writing to a peer that has closed", func(r *run) {
		c, s := r.pair()
		r.must(s.Close())
		r.noteRead("client", c)
		_, err := c.Write([]byte("first"))
		r.Err("first write", err)
		r.Err("later write", r.failure(c))
		_, err = c.Write([]byte("x"))
		r.Err("and again", err)
		r.noteRead("read then", c)
	}},
	{"writing to a peer that has closed, without having read", func(r *run) {
		c, s := r.pair()
		r.must(s.Close())
		r.Err("write", r.failure(c))
		_, err := c.Write([]byte("x"))
		r.Err("and again", err)
	}},
	{"half-close by the client", func(r *run) {
		c, s := r.pair()
		r.write(c, "request")
		r.must(c.CloseWrite())
		r.readFull("server", s, 7)
		r.noteRead("server then", s)
		r.write(s, "answer")
		r.must(s.Close())
		r.readFull("client", c, 6)
		r.noteRead("client then", c)
	}},
	{"half-close by the server", func(r *run) {
		c, s := r.pair()
		r.must(s.CloseWrite())
		r.noteRead("client", c)
		r.write(c, "still")
		r.readFull("server", s, 5)
		r.must(c.Close())
		r.noteRead("server then", s)
	}},
	{"writing after CloseWrite", func(r *run) {
		c, _ := r.pair()
		r.must(c.CloseWrite())
		_, err := c.Write([]byte("x"))
		r.Err("Write", err)
		_, err = c.Write(nil)
		r.Err("empty Write", err)
	}},
	{"CloseWrite twice", func(r *run) {
		c, s := r.pair()
		r.Err("first", c.CloseWrite())
		r.Err("second", c.CloseWrite())
		r.noteRead("server", s)
		r.must(s.CloseWrite())
		r.noteRead("client", c)
		r.Err("third", c.CloseWrite())
	}},
	{"CloseRead", func(r *run) {
		c, s := r.pair()
		r.Err("CloseRead", c.CloseRead())
		r.noteRead("read", c)
		r.Err("CloseRead again", c.CloseRead())
		r.write(c, "the other way works")
		r.noteRead("server", s)
	}},
	{"CloseRead with data waiting", func(r *run) {
		c, s := r.pair()
		r.write(s, "ab")
		r.readFull("first byte", c, 1)
		r.must(c.CloseRead())
		r.noteRead("second byte", c)
		r.noteRead("then", c)
	}},
	{"CloseRead wakes Read", func(r *run) {
		c, _ := r.pair()
		time.AfterFunc(brief, func() { c.CloseRead() })
		r.noteRead("read", c)
	}},
	{"the peer writes after CloseRead", func(r *run) {
		c, s := r.pair()
		r.must(c.CloseRead())
		_, err := s.Write([]byte("unwanted"))
		r.Err("write", err)
		r.write(c, "echo") // arrives after any reaction to the unwanted bytes
		r.readFull("server", s, 4)
		_, err = s.Write([]byte("unwanted"))
		r.Err("second write", err)
	}},
	{"CloseRead and CloseWrite", func(r *run) {
		c, s := r.pair()
		r.must(c.CloseRead())
		r.must(c.CloseWrite())
		r.noteRead("server", s)
		r.noteRead("client", c)
		r.Err("Close", c.Close())
	}},
	{"both sides close at once", func(r *run) {
		c, s := r.pair()
		var wg sync.WaitGroup
		for _, conn := range []tcpConn{c, s} {
			wg.Go(func() { conn.CloseWrite() })
		}
		wg.Wait()
		r.noteRead("client", c)
		r.noteRead("server", s)
		r.Err("Close client", c.Close())
		r.Err("Close server", s.Close())
	}},
	{"closing with unread data resets", func(r *run) {
		c, s := r.pair()
		r.write(c, "never read")
		r.readFull("one byte", s, 1)
		r.must(s.Close())
		r.noteRead("client", c)
		r.noteRead("client again", c)
		_, err := c.Write([]byte("x"))
		r.Err("write", err)
	}},
	{"linger 0 resets: the peer reads", func(r *run) {
		c, s := r.pair()
		r.must(s.SetLinger(0))
		r.must(s.Close())
		r.noteRead("client", c)
		r.noteRead("client again", c)
		_, err := c.Write([]byte("x"))
		r.Err("write", err)
	}},
	{"linger 0 resets: the peer writes", func(r *run) {
		c, s := r.pair()
		r.must(s.SetLinger(0))
		r.must(s.Close())
		r.Err("write", r.failure(c))
		_, err := c.Write([]byte("x"))
		r.Err("write again", err)
		r.noteRead("read", c)
	}},
	{"data before a reset can be read", func(r *run) {
		c, s := r.pair()
		r.write(s, "before")
		r.readFull("first half", c, 3)
		r.must(s.SetLinger(0))
		r.must(s.Close())
		r.Err("write", r.failure(c)) // the reset has arrived
		r.noteRead("second half", c)
		r.noteRead("then", c)
		r.noteRead("and then", c)
	}},
	{"a reset wakes Write", func(r *run) {
		c, s := r.pair()
		r.must(c.SetWriteBuffer(16 << 10))
		r.must(s.SetReadBuffer(16 << 10))
		errs := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, 16<<20))
			errs <- err
		}()
		s.Read(make([]byte, 1)) // Write is in progress
		time.AfterFunc(brief, func() {
			s.SetLinger(0)
			s.Close()
		})
		r.Err("write", <-errs)
	}},
	{"half-close methods after a reset", func(r *run) {
		c, s := r.pair()
		r.must(s.SetLinger(0))
		r.must(s.Close())
		r.noteRead("client", c)
		r.Err("CloseWrite", c.CloseWrite())
		r.Err("CloseRead", c.CloseRead())
		r.Err("SetNoDelay", c.SetNoDelay(true))
		r.Err("Close", c.Close())
	}},
	{"second Close", func(r *run) {
		c, _ := r.pair()
		r.Err("first", c.Close())
		r.Err("second", c.Close())
	}},
	{"every method after Close", func(r *run) {
		c, _ := r.pair()
		r.must(c.Close())
		r.noteRead("Read", c)
		_, err := c.Read(nil)
		r.Err("empty Read", err)
		_, err = c.Write([]byte("x"))
		r.Err("Write", err)
		_, err = c.Write(nil)
		r.Err("empty Write", err)
		r.Err("CloseRead", c.CloseRead())
		r.Err("CloseWrite", c.CloseWrite())
		r.Err("SetDeadline", c.SetDeadline(time.Now()))
		r.Err("SetReadDeadline", c.SetReadDeadline(time.Now()))
		r.Err("SetWriteDeadline", c.SetWriteDeadline(time.Time{}))
		r.Err("SetNoDelay", c.SetNoDelay(true))
		r.Err("SetLinger", c.SetLinger(0))
		r.Err("SetKeepAlive", c.SetKeepAlive(true))
		r.Err("SetKeepAlivePeriod", c.SetKeepAlivePeriod(time.Second))
		r.Err("SetKeepAliveConfig", c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true}))
		r.Err("SetReadBuffer", c.SetReadBuffer(1<<16))
		r.Err("SetWriteBuffer", c.SetWriteBuffer(1<<16))
		_, err = c.ReadFrom(strings.NewReader("x"))
		r.Err("ReadFrom", err)
		_, err = c.WriteTo(io.Discard)
		r.Err("WriteTo", err)
	}},
	{"Close wakes Read", func(r *run) {
		c, _ := r.pair()
		r.must(c.SetDeadline(time.Time{}))
		time.AfterFunc(brief, func() { c.Close() })
		r.noteRead("read", c)
	}},
	{"Close wakes several readers", func(r *run) {
		c, _ := r.pair()
		errs := make(chan error, 4)
		for range cap(errs) {
			go func() {
				_, err := c.Read(make([]byte, 1))
				errs <- err
			}()
		}
		time.AfterFunc(brief, func() { c.Close() })
		for i := range cap(errs) {
			r.Err(fmt.Sprint(i), <-errs)
		}
	}},
	{"Close wakes Write", func(r *run) {
		c, s := r.pair()
		r.must(c.SetWriteBuffer(16 << 10))
		r.must(s.SetReadBuffer(16 << 10))
		go func() {
			s.Read(make([]byte, 1)) // Write is in progress
			time.AfterFunc(brief, func() { c.Close() })
		}()
		n, err := c.Write(make([]byte, 16<<20))
		r.Value("wrote some", n > 0)
		r.Err("write", err)
	}},
	{"data written before Close arrives", func(r *run) {
		c, s := r.pair()
		data := pattern(1 << 20)
		done := make(chan struct{})
		go func() {
			defer close(done)
			got, err := io.ReadAll(s)
			r.Value("length", len(got))
			r.Err("ReadAll", err)
		}()
		_, err := c.Write(data)
		r.must(err)
		r.must(c.Close())
		<-done
	}},
	{"a lingering Close delivers", func(r *run) {
		c, s := r.pair()
		r.must(c.SetLinger(5))
		r.write(c, "slowly")
		r.Err("Close", c.Close())
		r.readFull("server", s, 6)
		r.noteRead("then", s)
	}},
	{"a lingering Close gives up in time", func(r *run) {
		c, s := r.pair()
		r.must(c.SetWriteBuffer(64 << 10))
		r.must(s.SetReadBuffer(16 << 10))
		r.must(c.SetLinger(1))
		_, err := c.Write(make([]byte, 48<<10)) // more than the peer accepts
		r.must(err)
		c.SetWriteDeadline(time.Now().Add(2 * brief))
		c.Write(make([]byte, 16<<20)) // more than fits
		start := time.Now()
		r.Err("Close", c.Close())
		took := time.Since(start)
		r.Value("waited", took > 500*time.Millisecond)
		r.Value("not for ever", took < patience)
	}},
	{"negative buffer sizes", func(r *run) {
		c, _ := r.pair()
		r.Err("SetReadBuffer", c.SetReadBuffer(-1))
		r.Err("SetWriteBuffer", c.SetWriteBuffer(-1))
		r.Err("SetReadBuffer 0", c.SetReadBuffer(0))
	}},
	{"concurrent Close", func(r *run) {
		c, _ := r.pair()
		var wg sync.WaitGroup
		ok := make(chan struct{}, 8)
		for range cap(ok) {
			wg.Go(func() {
				if c.Close() == nil {
					ok <- struct{}{}
				}
			})
		}
		wg.Wait()
		r.Value("Close calls without error", len(ok))
	}},
}
