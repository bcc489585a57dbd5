//go:build linux

package hoststack

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// pattern is n bytes that do not repeat with any buffer size.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16)
	}
	return b
}

var tcpData = []behaviour{
	{"bytes arrive in order, both ways", func(r *run) {
		c, s := r.pair()
		r.write(c, "request")
		r.readFull("server", s, 7)
		r.write(s, "response")
		r.readFull("client", c, 8)
	}},
	{"4 MiB arrive unchanged", func(r *run) {
		c, s := r.pair()
		data := pattern(4 << 20)
		go func() {
			c.Write(data)
			c.CloseWrite()
		}()
		got, err := io.ReadAll(s)
		r.Err("ReadAll", err)
		r.Value("length", len(got))
		r.Value("same", bytes.Equal(got, data))
	}},
	{"both directions at once", func(r *run) {
		c, s := r.pair()
		data := pattern(1 << 20)
		var wg sync.WaitGroup
		sums := make([]string, 2)
		for i, conn := range []tcpConn{c, s} {
			wg.Go(func() {
				conn.Write(data)
				conn.CloseWrite()
			})
			wg.Go(func() {
				h := sha256.New()
				io.Copy(h, conn)
				sums[i] = fmt.Sprintf("%x", h.Sum(nil))
			})
		}
		wg.Wait()
		r.Value("sums", sums)
	}},
	{"Read returns what is there", func(r *run) {
		c, s := r.pair()
		r.write(c, "abc")
		buf := make([]byte, 100)
		n, err := s.Read(buf)
		r.Value("n", n)
		r.Err("Read", err)
	}},
	{"Read takes part of what is there", func(r *run) {
		c, s := r.pair()
		r.write(c, "abcdef")
		r.readFull("first", s, 2)
		r.readFull("second", s, 4)
	}},
	{"empty buffers", func(r *run) {
		c, s := r.pair()
		n, err := c.Write(nil)
		r.Value("written", n)
		r.Err("Write", err)
		n, err = s.Read(nil)
		r.Value("read", n)
		r.Err("Read", err)
		r.must(c.SetReadDeadline(time.Unix(1, 0)))
		n, err = c.Read(nil)
		r.Value("read past deadline", n)
		r.Err("Read past deadline", err)
	}},
	{"empty buffers after the peer has closed", func(r *run) {
		c, s := r.pair()
		r.must(s.Close())
		r.noteRead("client", c)
		n, err := c.Read(nil)
		r.Value("read", n)
		r.Err("Read", err)
	}},
	{"one large Write", func(r *run) {
		c, s := r.pair()
		go io.Copy(io.Discard, s)
		n, err := c.Write(make([]byte, 3<<20))
		r.Value("n", n)
		r.Err("Write", err)
	}},
	{"many one-byte writes", func(r *run) {
		c, s := r.pair()
		for i := range 300 {
			r.write(c, string(rune('a'+i%26)))
		}
		r.readFull("server", s, 300)
	}},
	{"concurrent writes do not mix", func(r *run) {
		c, s := r.pair()
		const size, writers = 100 << 10, 4
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() { c.Write(bytes.Repeat([]byte{byte('a' + i)}, size)) })
		}
		mixed := 0
		for range writers {
			block := make([]byte, size)
			_, err := io.ReadFull(s, block)
			r.must(err)
			if !bytes.Equal(block, bytes.Repeat(block[:1], size)) {
				mixed++
			}
		}
		wg.Wait()
		r.Value("mixed blocks", mixed)
	}},
	{"concurrent reads get every byte once", func(r *run) {
		c, s := r.pair()
		var total sync.WaitGroup
		counts := make(chan int, 4)
		for range cap(counts) {
			total.Go(func() {
				n, _ := io.Copy(io.Discard, struct{ io.Reader }{s})
				counts <- int(n)
			})
		}
		r.must(func() error { _, err := c.Write(make([]byte, 1<<20)); return err }())
		r.must(c.Close())
		total.Wait()
		sum := 0
		for range cap(counts) {
			sum += <-counts
		}
		r.Value("bytes", sum)
	}},
	{"a reader that stops stops the writer", func(r *run) {
		c, s := r.pair()
		r.must(s.SetReadBuffer(32 << 10))
		r.must(c.SetWriteBuffer(32 << 10))
		data := pattern(4 << 20)
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(data)
			c.CloseWrite()
			done <- err
		}()
		select {
		case <-done:
			r.Text("write", "finished with nobody reading")
		case <-time.After(5 * brief):
			r.Text("write", "waits")
		}
		got, err := io.ReadAll(s)
		r.Err("ReadAll", err)
		r.Value("same", bytes.Equal(got, data))
		r.Err("Write", <-done)
	}},
	{"io.Copy to and from a connection", func(r *run) {
		c, s := r.pair()
		n, err := c.ReadFrom(strings.NewReader("from a reader"))
		r.Value("ReadFrom", n)
		r.Err("ReadFrom", err)
		r.must(c.CloseWrite())
		var b bytes.Buffer
		n, err = s.WriteTo(&b)
		r.Value("WriteTo", n)
		r.Err("WriteTo", err)
		r.Text("bytes", b.String())
	}},
	{"io.Copy between connections", func(r *run) {
		c1, s1 := r.pair()
		c2, s2 := r.pair()
		go func() {
			io.Copy(c2, s1) // a proxy
			c2.CloseWrite()
		}()
		data := pattern(1 << 20)
		go func() {
			c1.Write(data)
			c1.CloseWrite()
		}()
		got, err := io.ReadAll(s2)
		r.Err("ReadAll", err)
		r.Value("same", bytes.Equal(got, data))
	}},
	{"errors of ReadFrom and WriteTo", func(r *run) {
		c, s := r.pair()
		_, err := c.ReadFrom(io.MultiReader(strings.NewReader("x"), failing{}))
		r.Err("ReadFrom of a reader that fails", err)
		r.write(s, "xy")
		_, err = c.WriteTo(failing{})
		r.Err("WriteTo to a writer that fails", err)
		r.must(c.SetDeadline(time.Unix(1, 0)))
		_, err = c.ReadFrom(strings.NewReader("x"))
		r.Err("ReadFrom past the deadline", err)
		_, err = c.WriteTo(io.Discard)
		r.Err("WriteTo past the deadline", err)
	}},
	{"net.Buffers", func(r *run) {
		c, s := r.pair()
		n, err := (&net.Buffers{[]byte("one "), []byte("two "), nil, []byte("three")}).WriteTo(c)
		r.Value("n", n)
		r.Err("WriteTo", err)
		r.readFull("server", s, 13)
	}},
	{"the peer's address stays the same", func(r *run) {
		c, s := r.pair()
		r.Port("client", c.LocalAddr())
		r.Addr("client's local", c.LocalAddr())
		r.Addr("client's remote", c.RemoteAddr())
		r.Addr("server's local", s.LocalAddr())
		r.Addr("server's remote", s.RemoteAddr())
		r.must(c.Close())
		r.must(s.Close())
		r.Addr("client's local after Close", c.LocalAddr())
		r.Addr("client's remote after Close", c.RemoteAddr())
	}},
}

type failing struct{}

var errFailing = errors.New("out of paper")

func (failing) Read([]byte) (int, error)  { return 0, errFailing }
func (failing) Write([]byte) (int, error) { return 0, errFailing }
