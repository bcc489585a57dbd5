//go:build linux

package hoststack

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Sockets that share a port, and the calls of a program that wants the descriptor.
var sharedSockets = []behaviour{
	{"listeners with SO_REUSEPORT share the connections", func(r *run) {
		a, b := r.twoListeners(r.server4.String())
		var wg sync.WaitGroup
		var accepted [2]atomic.Int32
		for i, l := range []net.Listener{a, b} {
			wg.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted[i].Add(1)
					c.Close()
				}
			})
		}
		const dials = 64
		for range dials {
			r.noteRead("client", r.dial(a))
		}
		r.until("every connection accepted",
			func() bool { return accepted[0].Load()+accepted[1].Load() == dials })
		r.Value("both have some", accepted[0].Load() > 0 && accepted[1].Load() > 0)
		r.Err("close one", a.Close())
		r.Err("close the other", b.Close())
		wg.Wait()
	}},
	{"the port of shared listeners after one of them closes", func(r *run) {
		a, b := r.twoListeners(r.server4.String())
		r.must(a.Close())
		c := r.dial(b)
		s, err := b.Accept()
		r.must(err)
		r.closed(s)
		r.write(c, "still here")
		r.readFull("server", s, 10)
		_, err = r.server.Listen("tcp4", b.Addr().String())
		r.Err("not shared", err)
		r.must(b.Close())
		l, err := r.server.Listen("tcp4", b.Addr().String())
		r.Err("free", err)
		r.closed(l)
	}},
	{"wildcard listeners with SO_REUSEPORT", func(r *run) {
		a, b := r.twoListeners("")
		r.Addr("one", a.Addr())
		r.Addr("the other", b.Addr())
		_, err := r.server.ListenShared("tcp4", at(r.server4, a.Addr()))
		r.Err("and a specific one", err)
	}},
	{"SO_REUSEPORT on one of two listeners", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		_, err := r.server.ListenShared("tcp4", l.Addr().String())
		r.Err("shared after not shared", err)
		s, err := r.server.ListenShared("tcp4", net.JoinHostPort(r.server4.String(), "0"))
		r.must(err)
		r.closed(s)
		r.Port("second", s.Addr())
		_, err = r.server.Listen("tcp4", s.Addr().String())
		r.Err("not shared after shared", err)
	}},
	{"dial from a port that one listens on", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		address := net.JoinHostPort(r.client4.String(), "0")
		own, err := r.client.ListenShared("tcp4", address)
		r.must(err)
		r.closed(own)
		other, err := r.client.Listen("tcp4", address)
		r.must(err)
		r.closed(other)
		ctx := r.Context()
		_, err = r.client.DialFrom(ctx, own.Addr(), 0, "tcp", l.Addr().String())
		r.Err("not shared, from shared", err)
		_, err = r.client.DialShared(ctx, other.Addr(), "tcp", l.Addr().String())
		r.Err("shared, from not shared", err)
		c, err := r.client.DialShared(ctx, own.Addr(), "tcp", l.Addr().String())
		r.must(err)
		r.closed(c)
		r.Value("from the listener's port", c.LocalAddr().String() == own.Addr().String())
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.write(s, "there")
		r.readFull("dialled", c, 5)
		_, err = r.client.DialShared(ctx, own.Addr(), "tcp", l.Addr().String())
		r.Err("once more, to the same place", err)
		back, err := r.server.DialContext(ctx, "tcp4", own.Addr().String()) // it still listens
		r.must(err)
		r.closed(back)
		accepted, err := own.Accept()
		r.must(err)
		r.closed(accepted)
		r.write(back, "back")
		r.readFull("accepted", accepted, 4)
		p := r.packet("udp4", r.server4.String())
		pc, err := r.client.ListenPacketShared("udp4", address)
		r.must(err)
		r.closed(pc)
		_, err = r.client.DialFrom(ctx, pc.LocalAddr(), 0, "udp", p.LocalAddr().String())
		r.Err("UDP, not shared", err)
		u, err := r.client.DialShared(ctx, pc.LocalAddr(), "udp", p.LocalAddr().String())
		r.must(err)
		r.closed(u)
		r.write(u, "hello")
		r.must(p.SetDeadline(soon()))
		buf := make([]byte, 9)
		_, from, err := p.ReadFrom(buf)
		r.Err("read", err)
		r.Value("from the socket's port", from.String() == pc.LocalAddr().String())
		_, err = p.WriteTo([]byte("answer"), from)
		r.must(err)
		r.must(u.SetDeadline(soon()))
		n, err := u.Read(buf)
		r.Err("answer", err)
		r.Value("answer", string(buf[:n]))
	}},
	{"UDP sockets with SO_REUSEPORT share the peers", func(r *run) {
		address := net.JoinHostPort(r.server4.String(), "0")
		var socks [2]net.PacketConn
		for i := range socks {
			p, err := r.server.ListenPacketShared("udp4", address)
			r.must(err)
			r.closed(p)
			r.Port("port", p.LocalAddr())
			address = p.LocalAddr().String()
			socks[i] = p
			r.must(p.SetDeadline(soon()))
		}
		var wg sync.WaitGroup
		var answered [2]atomic.Int32
		for i, p := range socks {
			wg.Go(func() {
				buf := make([]byte, 64)
				for {
					n, from, err := p.ReadFrom(buf)
					if err != nil {
						return
					}
					answered[i].Add(1)
					p.WriteTo(buf[:n], from)
				}
			})
		}
		for i := range 64 {
			c := r.connected(socks[0])
			for range 2 { // the same socket serves the same peer each time
				r.write(c, fmt.Sprint("peer ", i))
				r.noteRead("client", c)
			}
		}
		r.Value("both have some", answered[0].Load() > 0 && answered[1].Load() > 0)
		r.Value("pairs", answered[0].Load()%2 == 0 && answered[1].Load()%2 == 0)
		for _, p := range socks {
			r.must(p.Close())
		}
		wg.Wait()
	}},
	{"SO_REUSEPORT on one of two UDP sockets", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		_, err := r.server.ListenPacketShared("udp4", p.LocalAddr().String())
		r.Err("shared after not shared", err)
	}},
	{"File", func(r *run) {
		c, s := r.pair()
		for name, f := range map[string]any{"connection": c} {
			file, err := f.(interface{ File() (*os.File, error) }).File()
			r.Err(name, err)
			if err == nil {
				r.closed(file)
			}
		}
		r.write(c, "goes on")
		r.readFull("server", s, 7)
	}},
	{"SyscallConn", func(r *run) {
		c, _ := r.pair()
		_, raw := c.(syscall.Conn)
		r.Value("TCP connection", raw)
		_, raw = r.packet("udp4", r.server4.String()).(syscall.Conn)
		r.Value("UDP socket", raw)
	}},
}

// twoListeners share a port of ip, which is named "port".
func (r *run) twoListeners(ip string) (a, b net.Listener) {
	r.Helper()
	a, err := r.server.ListenShared("tcp", net.JoinHostPort(ip, "0"))
	r.must(err)
	r.closed(a)
	r.Port("port", a.Addr())
	_, port, _ := net.SplitHostPort(a.Addr().String())
	b, err = r.server.ListenShared("tcp", net.JoinHostPort(ip, port))
	r.must(err)
	r.closed(b)
	return a, b
}
