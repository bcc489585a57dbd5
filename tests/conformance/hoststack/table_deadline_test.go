//go:build linux

package hoststack

import (
	"time"
)

var past = time.Unix(1, 0)

var tcpDeadlines = []behaviour{
	{"read deadline in the past", func(r *run) {
		c, _ := r.pair()
		r.must(c.SetReadDeadline(past))
		r.noteRead("read", c)
		r.noteRead("again", c)
	}},
	{"read deadline in the past with data waiting", func(r *run) {
		c, s := r.pair()
		r.write(s, "ab")
		r.readFull("first", c, 1)
		r.must(c.SetReadDeadline(past))
		r.noteRead("read", c)
		r.must(c.SetReadDeadline(time.Time{}))
		r.noteRead("after clearing it", c)
	}},
	{"read deadline in the future", func(r *run) {
		c, _ := r.pair()
		r.must(c.SetReadDeadline(time.Now().Add(brief)))
		r.noteRead("read", c)
		r.noteRead("again", c)
	}},
	{"a deadline set while Read waits", func(r *run) {
		c, _ := r.pair()
		time.AfterFunc(brief, func() { c.SetReadDeadline(past) })
		r.noteRead("read", c)
	}},
	{"a deadline moved while Read waits", func(r *run) {
		c, s := r.pair()
		r.must(c.SetReadDeadline(time.Now().Add(ample)))
		time.AfterFunc(brief, func() { c.SetReadDeadline(soon()) })
		time.AfterFunc(ample+4*brief, func() { s.Write([]byte("late")) })
		r.noteRead("read", c)
	}},
	{"a deadline set and cleared again", func(r *run) {
		c, s := r.pair()
		r.must(c.SetDeadline(past))
		r.must(c.SetDeadline(time.Time{}))
		r.write(c, "ping")
		r.noteRead("server", s)
		r.write(s, "pong")
		r.noteRead("client", c)
	}},
	{"the read deadline leaves writes alone", func(r *run) {
		c, s := r.pair()
		r.must(c.SetReadDeadline(past))
		r.write(c, "hello")
		r.noteRead("server", s)
	}},
	{"the write deadline leaves reads alone", func(r *run) {
		c, s := r.pair()
		r.must(c.SetWriteDeadline(past))
		r.write(s, "hello")
		r.noteRead("client", c)
	}},
	{"write deadline in the past", func(r *run) {
		c, _ := r.pair()
		r.must(c.SetWriteDeadline(past))
		n, err := c.Write([]byte("x"))
		r.Value("n", n)
		r.Err("write", err)
		_, err = c.Write(nil)
		r.Err("empty write", err)
	}},
	{"write deadline with nobody reading", func(r *run) {
		c, s := r.pair()
		r.must(c.SetWriteBuffer(16 << 10))
		r.must(s.SetReadBuffer(16 << 10))
		n, err := 0, error(nil)
		// when all processors are busy, it may pass before Write begins
		for tries := 0; n == 0 && tries < 5; tries++ {
			r.must(c.SetWriteDeadline(time.Now().Add(ample)))
			n, err = c.Write(make([]byte, 16<<20))
		}
		r.Value("wrote some", n > 0 && n < 16<<20)
		r.Err("write", err)
		r.must(c.SetWriteDeadline(soon()))
		go func() {
			buf := make([]byte, 1<<20)
			for {
				if _, err := s.Read(buf); err != nil {
					return
				}
			}
		}()
		_, err = c.Write([]byte("x"))
		r.Err("write later", err)
	}},
	{"SetDeadline sets both", func(r *run) {
		c, _ := r.pair()
		r.must(c.SetDeadline(past))
		r.noteRead("read", c)
		_, err := c.Write([]byte("x"))
		r.Err("write", err)
	}},
	{"the connection survives its deadlines", func(r *run) {
		c, s := r.pair()
		for range 3 {
			r.must(c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			r.noteRead("read", c)
		}
		r.must(c.SetReadDeadline(soon()))
		r.write(s, "alive")
		r.noteRead("read", c)
	}},
	{"a deadline far away", func(r *run) {
		c, s := r.pair()
		r.must(c.SetReadDeadline(time.Now().Add(200 * 365 * 24 * time.Hour)))
		r.write(s, "hello")
		r.noteRead("read", c)
	}},
	{"a dial's timeout", func(r *run) {
		addr := r.deaf()
		c, err := r.client.DialFrom(r.Context(), nil, 2*brief, "tcp", addr)
		if err == nil {
			c.Close()
		}
		r.Err("dial", timeoutOnly{err})
	}},
	{"a dial's cancellation", func(r *run) {
		addr := r.deaf()
		ctx, cancel := withCancelAfter(2 * brief)
		defer cancel()
		_, err := r.client.DialContext(ctx, "tcp", addr)
		r.Err("dial", err)
	}},
	{"a backlog that is full", func(r *run) {
		addr := r.deaf()
		c, err := r.client.DialFrom(r.Context(), nil, 2*brief, "tcp", addr)
		r.Value("connected", err == nil)
		if err == nil {
			c.Close()
		}
	}},
}
