//go:build linux

package hoststack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

var tcpDial = []behaviour{
	{"refused", func(r *run) {
		l := r.listen("tcp", "")
		r.must(l.Close())
		_, err := r.client.DialContext(r.Context(), "tcp", at(r.server4, l.Addr()))
		r.Err("v4", err)
		_, err = r.client.DialContext(r.Context(), "tcp", at(r.server6, l.Addr()))
		r.Err("v6", err)
		_, err = r.client.DialTCP("tcp", nil, &net.TCPAddr{IP: r.server4.AsSlice(),
			Port: l.Addr().(*net.TCPAddr).Port})
		r.Err("DialTCP", err)
	}},
	{"bad networks and addresses", func(r *run) {
		for _, c := range [][2]string{
			{"tcp5", "127.0.0.1:1"}, {"tcp", ""}, {"tcp", "nonsense"}, {"tcp", "127.0.0.1"},
			{"tcp", "127.0.0.1:99999"}, {"tcp", "127.0.0.1:-1"},
			{"tcp", "127.0.0.1:nosuchservice"}, {"tcp4", "[::1]:1"}, {"tcp6", "127.0.0.1:1"},
			{"tcp", "::1:1"}, {"tcp", "[::1:1"},
		} {
			_, err := r.client.DialContext(r.Context(), c[0], c[1])
			r.Err(c[0]+" "+c[1], err)
		}
	}},
	{"DialTCP with a nil or wrong address", func(r *run) {
		_, err := r.client.DialTCP("tcp", nil, nil)
		r.Err("nil", err)
		_, err = r.client.DialTCP("udp", nil, &net.TCPAddr{})
		r.Err("udp", err)
		_, err = r.client.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv6loopback, Port: 1})
		r.Err("v6 on tcp4", err)
		_, err = r.client.DialTCP("tcp6", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
		r.Err("v4 on tcp6", err)
	}},
	{"the methods of net.Dialer with addresses", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		to := l.Addr().(*net.TCPAddr).AddrPort()
		ctx := r.Context()
		c, err := r.client.DialerTCP(ctx, "tcp", netip.AddrPort{}, to)
		r.must(err)
		r.closed(c)
		r.Addr("chosen", c.LocalAddr())
		r.Addr("remote", c.RemoteAddr())
		from := netip.AddrPortFrom(r.client4, 0)
		c, err = r.client.DialerTCP(ctx, "tcp4", from, to)
		r.must(err)
		r.closed(c)
		r.Addr("given", c.LocalAddr())
		for _, network := range []string{"tcp6", "udp", "", "tcp5"} {
			_, err = r.client.DialerTCP(ctx, network, netip.AddrPort{}, to)
			r.Err("TCP "+network, err)
		}
		_, err = r.client.DialerTCP(ctx, "tcp", netip.AddrPortFrom(r.client6, 0), to)
		r.Err("TCP of two families", err)
		p := r.packet("udp4", r.server4.String())
		at := p.LocalAddr().(*net.UDPAddr).AddrPort()
		u, err := r.client.DialerUDP(ctx, "udp", netip.AddrPort{}, at)
		r.must(err)
		r.closed(u)
		r.Addr("UDP", u.LocalAddr())
		r.Addr("UDP remote", u.RemoteAddr())
		r.write(u, "hello")
		r.must(p.SetDeadline(soon()))
		buf := make([]byte, 9)
		n, _, err := p.ReadFrom(buf)
		r.Err("read", err)
		r.Value("datagram", string(buf[:n]))
		for _, network := range []string{"udp6", "tcp", ""} {
			_, err = r.client.DialerUDP(ctx, network, netip.AddrPort{}, at)
			r.Err("UDP "+network, err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = r.client.DialerTCP(ended, "tcp", netip.AddrPort{}, to)
		r.Err("TCP, cancelled", err)
		late, cancel := context.WithDeadline(ctx, time.Unix(1, 0))
		defer cancel()
		_, err = r.client.DialerTCP(late, "tcp", netip.AddrPort{}, to)
		r.Err("TCP, late", err)
		_, err = r.client.DialerUDP(ended, "udp", netip.AddrPort{}, at)
		r.Err("UDP, cancelled", err)
		_, err = r.client.DialerUDP(late, "udp", netip.AddrPort{}, at)
		r.Err("UDP, late", err)
	}},
	{"a context that is cancelled already", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := r.client.DialContext(ctx, "tcp", l.Addr().String())
		r.Err("dial", err)
	}},
	{"a deadline that has passed already", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		ctx, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
		defer cancel()
		_, err := r.client.DialContext(ctx, "tcp", l.Addr().String())
		r.Err("dial", err)
	}},
	{"a timeout that has passed already", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		_, err := r.client.DialFrom(context.Background(), nil, -1, "tcp", l.Addr().String())
		r.Err("dial", err)
	}},
	{"the context does not matter once connected", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		ctx, cancel := context.WithCancel(context.Background())
		c, err := r.client.DialContext(ctx, "tcp", l.Addr().String())
		r.must(err)
		r.closed(c)
		cancel()
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.write(s, "hello")
		r.noteRead("client", c)
	}},
	{"from a local address and port", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		probe, err := r.client.Listen("tcp4", net.JoinHostPort(r.client4.String(), "0"))
		r.must(err)
		probe.Close()
		r.Port("mine", probe.Addr())
		c, err := r.client.DialFrom(r.Context(), probe.Addr(), 0, "tcp", l.Addr().String())
		r.must(err)
		r.closed(c)
		r.Addr("local", c.LocalAddr())
	}},
	{"from an address without port", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		c, err := r.client.DialFrom(r.Context(), &net.TCPAddr{IP: r.client4.AsSlice()},
			0, "tcp", l.Addr().String())
		r.must(err)
		r.closed(c)
		r.Addr("local", c.LocalAddr())
	}},
	{"from an address that is not ours", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		_, err := r.client.DialFrom(r.Context(), &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7)},
			0, "tcp", l.Addr().String())
		r.Err("dial", err)
	}},
	{"from an address of the other family or type", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		_, err := r.client.DialFrom(r.Context(), &net.TCPAddr{IP: net.IPv6loopback},
			0, "tcp", l.Addr().String())
		r.Err("family", err)
		_, err = r.client.DialFrom(r.Context(), &net.UDPAddr{IP: r.client4.AsSlice()},
			0, "tcp", l.Addr().String())
		r.Err("type", err)
	}},
	{"from a port in use", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		mine, err := r.client.Listen("tcp4", net.JoinHostPort(r.client4.String(), "0"))
		r.must(err)
		r.closed(mine)
		r.Port("mine", mine.Addr())
		_, err = r.client.DialFrom(r.Context(), mine.Addr(), 0, "tcp", l.Addr().String())
		r.Err("dial", err)
	}},
	{"the same local port to two servers", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		l2, err := r.server.Listen("tcp4", at(r.alias4, l.Addr()))
		r.must(err)
		r.closed(l2)
		c := r.dial(l)
		r.Port("mine", c.LocalAddr())
		_, err = r.client.DialFrom(r.Context(), c.LocalAddr(), 0, "tcp", l2.Addr().String())
		r.Err("dial", err)
	}},
	{"wildcards mean this host", func(r *run) {
		l, err := r.client.Listen("tcp", ":0")
		r.must(err)
		r.closed(l)
		r.Port("port", l.Addr())
		for _, host := range []string{"", "0.0.0.0", "::"} {
			c, err := r.client.DialContext(r.Context(), "tcp", at0(host, l.Addr()))
			r.Err(host, err)
			if err == nil {
				r.Addr(host+" remote", c.RemoteAddr())
				r.Addr(host+" local", c.LocalAddr())
				c.Close()
			}
		}
	}},
	{"localhost", func(r *run) {
		l, err := r.client.Listen("tcp4", "localhost:0")
		r.must(err)
		r.closed(l)
		c, err := r.client.DialContext(r.Context(), "tcp4", at0("localhost", l.Addr()))
		r.must(err)
		r.closed(c)
		r.Port("port", l.Addr())
		r.Addr("remote", c.RemoteAddr())
	}},
	{"our own address", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		c, err := r.server.DialContext(r.Context(), "tcp", l.Addr().String())
		r.must(err)
		r.closed(c)
		s, err := l.Accept()
		r.must(err)
		r.closed(s)
		r.Addr("local", c.LocalAddr())
		r.write(c, "to myself")
		r.noteRead("server", s)
	}},
	{"port 0", func(r *run) {
		_, err := r.client.DialContext(r.Context(), "tcp",
			net.JoinHostPort(r.server4.String(), "0"))
		r.Err("dial", err)
	}},
	{"multicast and broadcast", func(r *run) {
		_, err := r.client.DialContext(r.Context(), "tcp", "224.0.0.1:80")
		r.Err("multicast", err)
		_, err = r.client.DialContext(r.Context(), "tcp", "255.255.255.255:80")
		r.Err("broadcast", err)
		_, err = r.client.DialContext(r.Context(), "tcp", "[ff05::1]:80")
		r.Err("IPv6 multicast", err)
	}},
	{"a hundred at once", func(r *run) {
		l := r.listen("tcp", r.server4.String())
		const n = 100
		errs := make(chan error, n)
		for range n {
			go func() {
				c, err := r.client.DialContext(context.Background(), "tcp", l.Addr().String())
				if err == nil {
					r.closed(c)
				}
				errs <- err
			}()
		}
		failed := 0
		for range n {
			if err := <-errs; err != nil {
				failed++
			}
			s, err := l.Accept()
			r.must(err)
			s.Close()
		}
		r.Value("failed", failed)
	}},
	{"fresh connections have working defaults", func(r *run) {
		c, s := r.pair()
		for name, conn := range map[string]tcpConn{"client": c, "server": s} {
			mp, err := conn.MultipathTCP()
			if mp || err != nil {
				r.Text(name, fmt.Sprint("multipath ", mp, err))
			}
		}
		r.Err("SetNoDelay", c.SetNoDelay(false))
		r.Err("SetKeepAlive", c.SetKeepAlive(true))
		r.Err("SetKeepAlivePeriod", c.SetKeepAlivePeriod(time.Minute))
		r.Err("SetKeepAliveConfig", c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: -1,
			Interval: -1, Count: -1}))
		r.Err("SetLinger", c.SetLinger(5))
		r.Err("SetLinger off", c.SetLinger(-1))
		r.Err("SetReadBuffer", c.SetReadBuffer(1<<16))
		r.Err("SetWriteBuffer", c.SetWriteBuffer(1<<16))
	}},
}
