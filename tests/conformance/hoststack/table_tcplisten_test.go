//go:build linux

package hoststack

import (
	"fmt"
	"net"
	"sync"
	"time"
)

var tcpListen = []behaviour{
	{"wildcards print as net prints them", func(r *run) {
		for _, c := range [][2]string{
			{"tcp", ":0"}, {"tcp4", ":0"}, {"tcp6", ":0"}, {"tcp", "0.0.0.0:0"},
			{"tcp4", "0.0.0.0:0"}, {"tcp", "[::]:0"}, {"tcp6", "[::]:0"},
		} {
			l, err := r.server.Listen(c[0], c[1])
			r.must(err)
			r.Addr(c[0]+" "+c[1], l.Addr())
			l.Close()
		}
	}},
	{"specific addresses print as given", func(r *run) {
		for _, c := range [][2]string{{"tcp", r.server4.String()}, {"tcp4", r.server4.String()},
			{"tcp", r.server6.String()}, {"tcp6", r.server6.String()}, {"tcp", "localhost"}} {
			l, err := r.server.Listen(c[0], net.JoinHostPort(c[1], "0"))
			r.must(err)
			r.Addr(c[0]+" "+r.plain(c[1]), l.Addr())
			l.Close()
		}
	}},
	{"ListenTCP with nil and empty addresses", func(r *run) {
		for i, a := range []*net.TCPAddr{nil, {}, {IP: net.IPv4zero}, {IP: net.IPv6zero}} {
			l, err := r.server.ListenTCP("tcp", a)
			r.must(err)
			r.Addr(fmt.Sprint(i), l.Addr())
			l.Close()
		}
	}},
	{"bad networks and addresses", func(r *run) {
		for _, c := range [][2]string{
			{"tcp5", ":0"}, {"udp", ":0"}, {"tcp", "nonsense"}, {"tcp", "[::1"},
			{"tcp", ":99999"}, {"tcp", ":-1"},
			{"tcp", ":nosuchservice"}, {"tcp4", "[::1]:0"},
			{"tcp6", "127.0.0.1:0"}, {"tcp", "1.2.3.4.5:0:0"},
		} {
			_, err := r.server.Listen(c[0], c[1])
			r.Err(c[0]+" "+c[1], err)
		}
	}},
	{"ListenTCP with an address of the wrong family", func(r *run) {
		_, err := r.server.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv6loopback})
		r.Err("v6 on tcp4", err)
		_, err = r.server.ListenTCP("tcp6", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		r.Err("v4 on tcp6", err)
		_, err = r.server.ListenTCP("udp", nil)
		r.Err("udp", err)
	}},
	{"an address that is not ours", func(r *run) {
		_, err := r.server.Listen("tcp", "203.0.113.7:0")
		r.Err("v4", err)
		_, err = r.server.Listen("tcp", "[2001:db8:ffff::7]:0")
		r.Err("v6", err)
	}},
	{"an address that is not ours, at a port in use", func(r *run) {
		l := r.listen("tcp4", "")
		port := l.Addr().(*net.TCPAddr).Port
		_, err := r.server.Listen("tcp4", fmt.Sprintf("203.0.113.7:%d", port))
		r.Err("v4", err)
	}},
	{"a port in use", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		_, err := r.server.Listen("tcp", l.Addr().String())
		r.Err("same address", err)
	}},
	{"wildcard and specific addresses share no port", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		for _, c := range [][2]string{{"tcp", ""}, {"tcp4", ""}, {"tcp6", ""},
			{"tcp", r.alias4.String()}} {
			l2, err := r.server.Listen(c[0], at0(c[1], l.Addr()))
			r.Err(c[0]+" "+r.plain(c[1])+" after specific", err)
			if err == nil {
				l2.Close()
			}
		}
	}},
	{"wildcards of different families", func(r *run) {
		for _, c := range [][2]string{{"tcp", "tcp4"}, {"tcp", "tcp6"}, {"tcp4", "tcp6"},
			{"tcp4", "tcp"}, {"tcp6", "tcp"}, {"tcp6", "tcp4"}} {
			l := r.listen(c[0], "")
			l2, err := r.server.Listen(c[1], at0("", l.Addr()))
			r.Err(c[1]+" after "+c[0], err)
			if err == nil {
				l2.Close()
			}
			l.Close()
		}
	}},
	{"specific after wildcard", func(r *run) {
		l := r.listen("tcp", "")
		_, err := r.server.Listen("tcp", at(r.server4, l.Addr()))
		r.Err("v4", err)
		_, err = r.server.Listen("tcp", at(r.server6, l.Addr()))
		r.Err("v6", err)
	}},
	{"one address each for two listeners on a port", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		l2, err := r.server.Listen("tcp", at(r.alias4, l.Addr()))
		r.must(err)
		r.closed(l2)
		c := r.dial(l)
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.Addr("accepted", s.LocalAddr())
		r.Addr("dialled", c.RemoteAddr())
	}},
	{"the port is free after Close", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		r.must(l.Close())
		l2, err := r.server.Listen("tcp", l.Addr().String())
		r.Err("again", err)
		if err == nil {
			l2.Close()
		}
	}},
	{"the port is free while accepted connections live", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.must(l.Close())
		l2, err := r.server.Listen("tcp", l.Addr().String())
		r.Err("again", err)
		if err == nil {
			r.closed(l2)
		}
		r.write(c, "still here")
		r.noteRead("old connection", s)
	}},
	{"the port is free while connections are in TIME-WAIT", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		s, err := l.Accept()
		r.must(err)
		r.must(s.Close()) // the server closes first
		r.noteRead("client", c)
		r.must(c.Close())
		r.must(l.Close())
		l2, err := r.server.Listen("tcp", l.Addr().String())
		r.Err("again", err)
		if err == nil {
			l2.Close()
		}
	}},
	{"a port used by a dialled connection", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		c := r.dial(l)
		r.Port("client", c.LocalAddr())
		_, err := r.client.Listen("tcp4", c.LocalAddr().String())
		r.Err("listen", err)
	}},
	{"Accept returns both ends' addresses", func(r *run) {
		for _, c := range [][3]string{
			{"tcp", "", r.server4.String()}, {"tcp", "", r.server6.String()},
			{"tcp4", "", r.server4.String()},
			{"tcp6", "", r.server6.String()}, {"tcp", r.server4.String(), r.server4.String()},
			{"tcp", r.server6.String(), r.server6.String()},
		} {
			l := r.listen(c[0], c[1])
			cl, err := r.client.DialContext(r.Context(), "tcp", at0(c[2], l.Addr()))
			r.must(err)
			s, err := l.Accept()
			r.must(err)
			name := r.plain(fmt.Sprint(c))
			r.Addr(name+" server's local", s.LocalAddr())
			r.Addr(name+" server's remote", s.RemoteAddr())
			r.Addr(name+" client's local", cl.LocalAddr())
			r.Addr(name+" client's remote", cl.RemoteAddr())
			cl.Close()
			s.Close()
			l.Close()
		}
	}},
	{"families that a listener does not speak are refused", func(r *run) {
		l4 := r.listen("tcp4", "")
		_, err := r.client.DialContext(r.Context(), "tcp", at(r.server6, l4.Addr()))
		r.Err("v6 to tcp4", err)
		l4.Close() // the other may get its port
		l6 := r.listen("tcp6", "")
		r.Port("other", l6.Addr())
		_, err = r.client.DialContext(r.Context(), "tcp", at(r.server4, l6.Addr()))
		r.Err("v4 to tcp6", err)
	}},
	{"second Close", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		r.Err("first", l.Close())
		r.Err("second", l.Close())
	}},
	{"methods after Close", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		r.must(l.Close())
		_, err := l.Accept()
		r.Err("Accept", err)
		r.Err("SetDeadline", l.SetDeadline(time.Now()))
		r.Addr("Addr", l.Addr())
	}},
	{"Close wakes Accept", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := l.Accept()
				errs <- err
			}()
		}
		time.AfterFunc(brief, func() { l.Close() })
		for range cap(errs) {
			r.Err("Accept", <-errs)
		}
	}},
	{"Close resets what was not accepted", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		r.must(c.SetDeadline(soon()))
		r.must(l.Close())
		r.noteRead("client", c)
		r.noteRead("client again", c)
		r.until("write fails", func() bool { _, err := c.Write([]byte("x")); return err != nil })
	}},
	{"Close keeps what was accepted", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.must(l.Close())
		r.write(s, "hello")
		r.noteRead("client", c)
	}},
	{"Accept deadline in the past", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		r.must(l.SetDeadline(time.Unix(1, 0)))
		_, err := l.Accept()
		r.Err("Accept", err)
		r.must(l.SetDeadline(time.Time{}))
		r.dial(l)
		s, err := l.Accept()
		r.Err("after clearing it", err)
		s.Close()
	}},
	{"Accept deadline in the past with a connection waiting", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		r.dial(l)
		r.must(l.SetDeadline(time.Unix(1, 0)))
		_, err := l.Accept()
		r.Err("Accept", err)
	}},
	{"Accept deadline in the future", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		r.must(l.SetDeadline(time.Now().Add(brief)))
		_, err := l.Accept()
		r.Err("Accept", err)
		_, err = l.Accept()
		r.Err("Accept again", err)
	}},
	{"concurrent Accept takes each connection once", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		const n = 20
		seen := make(chan string, n)
		for range 4 {
			go func() {
				for {
					s, err := l.Accept()
					if err != nil {
						return
					}
					r.closed(s)
					seen <- s.RemoteAddr().String()
				}
			}()
		}
		want := map[string]bool{}
		for range n {
			want[r.dial(l).LocalAddr().String()] = true
		}
		for range n {
			delete(want, <-seen)
		}
		r.Value("not accepted", len(want))
	}},
	{"data sent before Accept is there", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		r.write(c, "early")
		r.must(c.CloseWrite())
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.must(s.SetDeadline(soon()))
		r.readFull("server", s, 5)
		r.noteRead("then", s)
	}},
	{"a client that is gone before Accept", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		r.write(c, "bye")
		r.must(c.Close())
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.must(s.SetDeadline(soon()))
		r.readFull("server", s, 3)
		r.noteRead("then", s)
	}},
	{"a client that has reset before Accept", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		c := r.dial(l)
		r.must(c.SetLinger(0))
		r.must(c.Close())
		s, err := acceptReset(r, l)
		r.Err("Accept", err)
		if err != nil {
			return
		}
		r.closed(s)
		r.must(s.SetDeadline(soon()))
		r.noteRead("server", s)
	}},
	{"concurrent Close", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		var wg sync.WaitGroup
		ok := make(chan struct{}, 8)
		for range cap(ok) {
			wg.Go(func() {
				if l.Close() == nil {
					ok <- struct{}{}
				}
			})
		}
		wg.Wait()
		r.Value("Close calls without error", len(ok))
	}},
}

// at0 is at with a textual host, "" for the wildcard.
func at0(host string, a net.Addr) string {
	_, p, _ := net.SplitHostPort(a.String())
	return net.JoinHostPort(host, p)
}

// acceptReset accepts a connection whose reset has arrived.
func acceptReset(r *run, l tcpListener) (net.Conn, error) {
	s, err := l.Accept()
	if err != nil {
		return nil, err
	}
	r.must(s.SetReadDeadline(soon()))
	return s, nil
}
