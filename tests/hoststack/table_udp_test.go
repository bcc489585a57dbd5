package hoststack

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

// to is where p can be reached on the server's IPv4 address.
func (r *run) to(p net.PacketConn) *net.UDPAddr {
	return &net.UDPAddr{IP: r.server4.AsSlice(), Port: p.LocalAddr().(*net.UDPAddr).Port}
}

// to6 is to for IPv6.
func (r *run) to6(p net.PacketConn) *net.UDPAddr {
	return &net.UDPAddr{IP: r.server6.AsSlice(), Port: p.LocalAddr().(*net.UDPAddr).Port}
}

// noteReadFrom receives once and notes everything.
func (r *run) noteReadFrom(name string, p net.PacketConn, size int) net.Addr {
	buf := make([]byte, size)
	n, from, err := p.ReadFrom(buf)
	r.Text(name+" bytes", string(buf[:n]))
	r.Err(name, err)
	if err == nil {
		r.Addr(name+" from", from)
	}
	return from
}

var udpSockets = []behaviour{
	{"wildcards print as net prints them", func(r *run) {
		for _, c := range [][2]string{{"udp", ":0"}, {"udp4", ":0"}, {"udp6", ":0"}, {"udp", "0.0.0.0:0"}, {"udp", "[::]:0"}} {
			p, err := r.server.ListenPacket(c[0], c[1])
			r.must(err)
			r.Addr(c[0]+" "+c[1], p.LocalAddr())
			p.Close()
		}
	}},
	{"specific addresses print as given", func(r *run) {
		for _, c := range [][2]string{{"udp", r.server4.String()}, {"udp4", r.server4.String()}, {"udp", r.server6.String()}, {"udp6", r.server6.String()}} {
			p, err := r.server.ListenPacket(c[0], net.JoinHostPort(c[1], "0"))
			r.must(err)
			r.Addr(c[0]+" "+r.plain(c[1]), p.LocalAddr())
			p.Close()
		}
	}},
	{"bad networks and addresses", func(r *run) {
		for _, c := range [][2]string{{"udp5", ":0"}, {"udp", "nonsense"}, {"udp", ":99999"}, {"udp", ":nosuchservice"}, {"udp4", "[::1]:0"}, {"udp6", "127.0.0.1:0"}} {
			_, err := r.server.ListenPacket(c[0], c[1])
			r.Err(c[0]+" "+c[1], err)
		}
		_, err := r.server.ListenUDP("tcp", nil)
		r.Err("ListenUDP tcp", err)
		_, err = r.server.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv6loopback})
		r.Err("v6 on udp4", err)
	}},
	{"an address that is not ours", func(r *run) {
		_, err := r.server.ListenPacket("udp", "203.0.113.7:0")
		r.Err("listen", err)
	}},
	{"a port in use", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		for _, c := range [][2]string{{"udp4", r.server4.String()}, {"udp4", ""}, {"udp", ""}, {"udp4", r.alias4.String()}, {"udp6", ""}} {
			p2, err := r.server.ListenPacket(c[0], at0(c[1], p.LocalAddr()))
			r.Err(c[0]+" "+r.plain(c[1]), err)
			if err == nil {
				p2.Close()
			}
		}
	}},
	{"a wildcard port in use", func(r *run) {
		p := r.packet("udp", "")
		for _, c := range [][2]string{{"udp", ""}, {"udp4", ""}, {"udp6", ""}, {"udp4", r.server4.String()}, {"udp6", r.server6.String()}} {
			p2, err := r.server.ListenPacket(c[0], at0(c[1], p.LocalAddr()))
			r.Err(c[0]+" "+r.plain(c[1]), err)
			if err == nil {
				p2.Close()
			}
		}
	}},
	{"TCP and UDP ports are different", func(r *run) {
		l := r.listen("tcp4", r.server4.String())
		p, err := r.server.ListenPacket("udp4", l.Addr().String())
		r.Err("udp", err)
		if err == nil {
			p.Close()
		}
	}},
	{"the port is free after Close", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		r.must(p.Close())
		p2, err := r.server.ListenPacket("udp4", p.LocalAddr().String())
		r.Err("again", err)
		if err == nil {
			p2.Close()
		}
	}},
	{"second Close", func(r *run) {
		p := r.packet("udp", "")
		r.Err("first", p.Close())
		r.Err("second", p.Close())
		c := r.connected(r.packet("udp", ""))
		r.Err("connected first", c.Close())
		r.Err("connected second", c.Close())
	}},
	{"every method after Close", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		r.must(p.Close())
		r.noteReadFrom("ReadFrom", p, 10)
		r.noteRead("Read", p)
		_, err := p.WriteTo([]byte("x"), p.LocalAddr())
		r.Err("WriteTo", err)
		_, _, _, _, err = p.ReadMsgUDP(make([]byte, 1), nil)
		r.Err("ReadMsgUDP", err)
		_, _, err = p.ReadFromUDPAddrPort(make([]byte, 1))
		r.Err("ReadFromUDPAddrPort", err)
		r.Err("SetDeadline", p.SetDeadline(time.Now()))
		r.Err("SetReadDeadline", p.SetReadDeadline(time.Now()))
		r.Err("SetWriteDeadline", p.SetWriteDeadline(time.Now()))
		r.Err("SetReadBuffer", p.SetReadBuffer(1<<16))
		r.Err("SetWriteBuffer", p.SetWriteBuffer(1<<16))
		r.Addr("LocalAddr", p.LocalAddr())
	}},
	{"Close wakes ReadFrom", func(r *run) {
		p := r.packet("udp", "")
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, _, err := p.ReadFrom(make([]byte, 1))
				errs <- err
			}()
		}
		time.AfterFunc(brief, func() { p.Close() })
		for i := range cap(errs) {
			r.Err(fmt.Sprint(i), <-errs)
		}
	}},
	{"RemoteAddr", func(r *run) {
		p := r.packet("udp", "")
		r.Addr("unconnected", p.RemoteAddr())
		c := r.connected(p)
		r.Addr("connected", c.RemoteAddr())
		r.Addr("connected, local", c.LocalAddr())
	}},
	{"DialUDP addresses", func(r *run) {
		p := r.packet("udp", "")
		c, err := r.client.DialUDP("udp", nil, r.to(p))
		r.must(err)
		r.closed(c)
		r.Addr("v4 local", c.LocalAddr())
		r.Addr("v4 remote", c.RemoteAddr())
		c, err = r.client.DialUDP("udp", nil, r.to6(p))
		r.must(err)
		r.closed(c)
		r.Addr("v6 local", c.LocalAddr())
		r.Addr("v6 remote", c.RemoteAddr())
		c, err = r.client.DialUDP("udp", &net.UDPAddr{IP: r.client4.AsSlice()}, r.to(p))
		r.must(err)
		r.closed(c)
		r.Addr("from local", c.LocalAddr())
	}},
	{"bad DialUDP", func(r *run) {
		_, err := r.client.DialUDP("udp", nil, nil)
		r.Err("nil", err)
		_, err = r.client.DialUDP("tcp", nil, &net.UDPAddr{})
		r.Err("tcp", err)
		_, err = r.client.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv6loopback, Port: 1})
		r.Err("v6 on udp4", err)
		_, err = r.client.DialUDP("udp6", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
		r.Err("v4 on udp6", err)
		_, err = r.client.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(203, 0, 113, 7)}, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
		r.Err("from an address that is not ours", err)
	}},
}

var udpData = []behaviour{
	{"a question and its answer", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.free("udp4", r.client4.String())
		r.Port("client", c.LocalAddr())
		_, err := c.WriteTo([]byte("question"), r.to(p))
		r.must(err)
		from := r.noteReadFrom("server", p, 64)
		_, err = p.WriteTo([]byte("answer"), from)
		r.must(err)
		r.noteReadFrom("client", c, 64)
	}},
	{"senders' addresses on every kind of socket", func(r *run) {
		for _, network := range []string{"udp", "udp4", "udp6"} {
			p := r.packet(network, "")
			for _, to := range []*net.UDPAddr{r.to(p), r.to6(p)} {
				if network == "udp4" && to.IP.To4() == nil || network == "udp6" && to.IP.To4() != nil {
					continue
				}
				c, err := r.client.DialUDP("udp", nil, to)
				r.must(err)
				r.closed(c)
				for range 4 {
					r.write(c, "x")
				}
				buf := make([]byte, 8)
				_, a, err := p.ReadFromUDP(buf)
				r.must(err)
				r.Addr(network+" ReadFromUDP", a)
				_, ap, err := p.ReadFromUDPAddrPort(buf)
				r.must(err)
				r.Text(network+" ReadFromUDPAddrPort", fmt.Sprint(ap, " 4in6=", ap.Addr().Is4In6()))
				_, _, flags, a, err := p.ReadMsgUDP(buf, nil)
				r.must(err)
				r.Addr(network+" ReadMsgUDP", a)
				_, _, flags2, ap, err := p.ReadMsgUDPAddrPort(buf, nil)
				r.must(err)
				r.Text(network+" ReadMsgUDPAddrPort", fmt.Sprint(ap, flags, flags2))
			}
			p.Close()
		}
	}},
	{"every way to send", func(r *run) {
		p := r.packet("udp", "")
		for _, network := range []string{"udp", "udp4"} {
			c := r.free(network, "")
			to := r.to(p)
			_, err := c.WriteTo([]byte("WriteTo"), to)
			r.Err("WriteTo", err)
			_, err = c.WriteToUDP([]byte("WriteToUDP"), to)
			r.Err("WriteToUDP", err)
			_, err = c.WriteToUDPAddrPort([]byte("WriteToUDPAddrPort"), to.AddrPort())
			r.Err("WriteToUDPAddrPort", err)
			n, oobn, err := c.WriteMsgUDP([]byte("WriteMsgUDP"), nil, to)
			r.Err(fmt.Sprint("WriteMsgUDP ", n, oobn), err)
			n, oobn, err = c.WriteMsgUDPAddrPort([]byte("WriteMsgUDPAddrPort"), nil, to.AddrPort())
			r.Err(fmt.Sprint("WriteMsgUDPAddrPort ", n, oobn), err)
			for range 5 {
				r.noteReadFrom("server", p, 64)
			}
		}
	}},
	{"a connected socket", func(r *run) {
		p := r.packet("udp", "")
		c := r.connected(p)
		r.write(c, "Write")
		from := r.noteReadFrom("server", p, 64)
		n, oobn, err := c.WriteMsgUDP([]byte("WriteMsgUDP"), nil, nil)
		r.Err(fmt.Sprint("WriteMsgUDP ", n, oobn), err)
		r.noteReadFrom("server", p, 64)
		for _, s := range []string{"Read", "ReadFrom"} {
			_, err = p.WriteTo([]byte(s), from)
			r.must(err)
		}
		r.noteRead("Read", c)
		r.noteReadFrom("ReadFrom", c, 64)
	}},
	{"Read on an unconnected socket", func(r *run) {
		p := r.packet("udp", "")
		r.write(r.connected(p), "hello")
		r.noteRead("Read", p)
	}},
	{"a connected socket hears only its peer", func(r *run) {
		p, other := r.packet("udp4", r.server4.String()), r.packet("udp4", r.server4.String())
		c := r.connected(p)
		r.write(c, "x")
		_, from, err := p.ReadFrom(make([]byte, 1))
		r.must(err)
		_, err = other.WriteTo([]byte("stranger"), from)
		r.must(err)
		_, err = p.WriteTo([]byte("friend"), from)
		r.must(err)
		r.noteRead("client", c)
	}},
	{"datagrams keep their borders", func(r *run) {
		p := r.packet("udp", "")
		c := r.connected(p)
		for _, s := range []string{"a", "bb", "", "ccc"} {
			_, err := c.Write([]byte(s))
			r.must(err)
		}
		for i := range 4 {
			r.noteReadFrom(fmt.Sprint(i), p, 64)
		}
	}},
	{"empty datagrams", func(r *run) {
		p := r.packet("udp", "")
		c := r.connected(p)
		n, err := c.Write(nil)
		r.Value("n", n)
		r.Err("Write", err)
		r.noteReadFrom("server", p, 64)
		_, err = c.Write([]byte{})
		r.must(err)
		r.noteRead("Read", p)
	}},
	{"truncation", func(r *run) {
		p := r.packet("udp", "")
		c := r.connected(p)
		for range 4 {
			r.write(c, "0123456789")
		}
		r.write(c, "next")
		r.noteReadFrom("ReadFrom", p, 4)
		r.noteReadFrom("into nothing", p, 0)
		n, oobn, flags, _, err := p.ReadMsgUDP(make([]byte, 4), nil)
		r.Err(fmt.Sprint("ReadMsgUDP ", n, oobn, flags&syscall.MSG_TRUNC != 0), err)
		n, oobn, flags, _, err = p.ReadMsgUDP(make([]byte, 10), nil)
		r.Err(fmt.Sprint("ReadMsgUDP ", n, oobn, flags&syscall.MSG_TRUNC != 0), err)
		r.noteReadFrom("next", p, 64)
	}},
	{"the largest datagrams", func(r *run) {
		p := r.packet("udp", "")
		r.must(p.SetReadBuffer(1 << 20))
		c := r.free("udp4", r.client4.String())
		r.must(c.SetWriteBuffer(1 << 20))
		data := pattern(65508)
		for _, size := range []int{1472, 1473, 9000, 65507, 65508} {
			n, err := c.WriteTo(data[:size], r.to(p))
			r.Value(fmt.Sprint("n of ", size), n)
			r.Err(fmt.Sprint("WriteTo of ", size), err)
			if err != nil {
				continue
			}
			buf := make([]byte, 1<<16)
			n, _, err = p.ReadFrom(buf)
			r.must(err)
			r.Value("same", bytes.Equal(buf[:n], data[:size]))
		}
	}},
	{"large datagrams over IPv6", func(r *run) {
		p := r.packet("udp6", "")
		c := r.free("udp6", "")
		data := pattern(65528)
		for _, size := range []int{1452, 1453, 65000, 65528} {
			_, err := c.WriteTo(data[:size], r.to6(p))
			r.Err(fmt.Sprint("WriteTo of ", size), err)
			if err != nil {
				continue
			}
			buf := make([]byte, 1<<16)
			n, _, err := p.ReadFrom(buf)
			r.must(err)
			r.Value("same", bytes.Equal(buf[:n], data[:size]))
		}
	}},
	{"a hundred arrive in order", func(r *run) {
		p := r.packet("udp", "")
		c := r.connected(p)
		buf := make([]byte, 8)
		r.write(c, "hello") // datagrams that wait for the neighbour's address may be overtaken
		_, err := p.Read(buf)
		r.must(err)
		for i := range 100 {
			r.write(c, fmt.Sprint(i, " "))
		}
		var all strings.Builder
		for range 100 {
			n, err := p.Read(buf)
			r.must(err)
			all.Write(buf[:n])
		}
		r.Text("all", all.String())
	}},
	{"datagrams from many senders", func(r *run) {
		p := r.packet("udp", "")
		var wg sync.WaitGroup
		for range 10 {
			c := r.connected(p)
			wg.Go(func() {
				for range 10 {
					c.Write([]byte("x"))
				}
			})
		}
		wg.Wait()
		froms := map[string]int{}
		for range 100 {
			_, from, err := p.ReadFrom(make([]byte, 1))
			r.must(err)
			froms[from.String()]++
		}
		r.Value("senders", len(froms))
	}},
	{"deadlines", func(r *run) {
		p := r.packet("udp", "")
		c := r.connected(p)
		r.must(p.SetReadDeadline(past))
		r.noteReadFrom("past", p, 8)
		r.must(p.SetReadDeadline(time.Now().Add(brief)))
		r.noteReadFrom("future", p, 8)
		r.write(c, "waiting")
		r.noteReadFrom("still past", p, 8)
		r.must(p.SetReadDeadline(soon()))
		r.noteReadFrom("cleared", p, 8)
		r.must(c.SetWriteDeadline(past))
		_, err := c.Write([]byte("x"))
		r.Err("write", err)
		r.must(p.SetWriteDeadline(past))
		_, err = p.WriteTo([]byte("x"), c.LocalAddr())
		r.Err("WriteTo", err)
	}},
	{"an answer comes from the address that was asked", func(r *run) {
		p := r.packet("udp", "")
		alias := &net.UDPAddr{IP: r.alias4.AsSlice(), Port: r.to(p).Port}
		c := r.free("udp4", r.client4.String())
		_, err := c.WriteTo([]byte("question"), alias)
		r.must(err)
		_, from, err := p.ReadFrom(make([]byte, 64))
		r.must(err)
		_, err = p.WriteTo([]byte("answer"), from)
		r.must(err)
		r.noteReadFrom("client", c, 64)
	}},
	{"to our own address", func(r *run) {
		p := r.packet("udp", "")
		_, err := p.WriteTo([]byte("to myself"), r.to(p))
		r.must(err)
		r.noteReadFrom("read", p, 64)
	}},
	{"to the wildcard address", func(r *run) {
		p := r.packet("udp4", "")
		_, err := p.WriteTo([]byte("anyone?"), &net.UDPAddr{Port: r.to(p).Port})
		r.Err("WriteTo", err)
		r.noteReadFrom("read", p, 64)
	}},
}

var udpErrors = []behaviour{
	{"Write on an unconnected socket", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		_, err := p.Write([]byte("x"))
		r.Err("Write", err)
	}},
	{"destinations that are none", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		_, err := p.WriteTo([]byte("x"), nil)
		r.Err("nil interface", err)
		_, err = p.WriteToUDP([]byte("x"), nil)
		r.Err("nil pointer", err)
		_, err = p.WriteToUDPAddrPort([]byte("x"), netip.AddrPort{})
		r.Err("zero AddrPort", err)
		_, _, err = p.WriteMsgUDP([]byte("x"), nil, nil)
		r.Err("WriteMsgUDP nil", err)
		_, _, err = p.WriteMsgUDPAddrPort([]byte("x"), nil, netip.AddrPort{})
		r.Err("WriteMsgUDPAddrPort zero", err)
		_, err = p.WriteTo([]byte("x"), &net.TCPAddr{IP: r.server4.AsSlice(), Port: 1})
		r.Err("a TCP address", err)
		_, err = p.WriteTo([]byte("x"), &net.IPAddr{IP: r.server4.AsSlice()})
		r.Err("an IP address", err)
	}},
	{"port 0", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		_, err := p.WriteTo([]byte("x"), &net.UDPAddr{IP: r.server4.AsSlice()})
		r.Err("WriteTo", err)
	}},
	{"an IPv6 address on udp4", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		_, err := p.WriteTo([]byte("x"), &net.UDPAddr{IP: r.server6.AsSlice(), Port: 1})
		r.Err("WriteTo", err)
		_, err = p.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(r.server6, 1))
		r.Err("WriteToUDPAddrPort", err)
	}},
	{"an IPv4 address on udp6", func(r *run) {
		p := r.packet("udp6", r.server6.String())
		_, err := p.WriteTo([]byte("x"), &net.UDPAddr{IP: r.server4.AsSlice(), Port: 1})
		r.Err("WriteTo", err)
		w := r.packet("udp6", "")
		_, err = w.WriteTo([]byte("x"), &net.UDPAddr{IP: r.server4.AsSlice(), Port: 1})
		r.Err("WriteTo from the wildcard", err)
	}},
	{"a destination on a connected socket", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.connected(p)
		_, err := c.WriteTo([]byte("x"), r.to(p))
		r.Err("WriteTo", err)
		_, err = c.WriteToUDPAddrPort([]byte("x"), r.to(p).AddrPort())
		r.Err("WriteToUDPAddrPort", err)
		_, _, err = c.WriteMsgUDP([]byte("x"), nil, r.to(p))
		r.Err("WriteMsgUDP", err)
	}},
	{"nobody listens: connected", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.connected(p)
		r.must(p.Close())
		r.write(c, "x")
		r.noteRead("read", c)
		r.must(c.SetReadDeadline(time.Now().Add(brief)))
		r.noteRead("read again", c)
	}},
	{"nobody listens: connected, seen by ReadFrom", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.connected(p)
		r.must(p.Close())
		r.write(c, "x")
		r.noteReadFrom("read", c, 8)
	}},
	{"nobody listens: connected, seen by Write", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.connected(p)
		r.must(p.Close())
		r.Err("write", r.failure(c))
	}},
	{"nobody listens: connected, over IPv6", func(r *run) {
		p := r.packet("udp6", r.server6.String())
		c, err := r.client.DialUDP("udp", nil, r.to6(p))
		r.must(err)
		r.closed(c)
		r.must(p.Close())
		r.write(c, "x")
		r.must(c.SetReadDeadline(soon()))
		r.noteRead("read", c)
	}},
	{"nobody listens: unconnected", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.free("udp4", r.client4.String())
		r.must(p.Close())
		_, err := c.WriteTo([]byte("x"), r.to(p))
		r.Err("WriteTo", err)
		r.must(c.SetReadDeadline(time.Now().Add(2 * brief)))
		r.noteReadFrom("read", c, 8)
		_, err = c.WriteTo([]byte("x"), r.to(p))
		r.Err("WriteTo again", err)
	}},
	{"a server comes back", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		c := r.connected(p)
		r.must(p.Close())
		r.write(c, "lost")
		r.noteRead("read", c)
		p2, err := r.server.ListenPacket("udp4", p.LocalAddr().String())
		r.must(err)
		r.closed(p2)
		r.must(p2.SetDeadline(soon()))
		r.write(c, "found")
		r.noteReadFrom("server", p2, 8)
	}},
	{"buffer sizes", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		r.Err("SetReadBuffer", p.SetReadBuffer(1<<20))
		r.Err("SetWriteBuffer", p.SetWriteBuffer(1<<20))
		r.Err("SetReadBuffer of 1", p.SetReadBuffer(1))
		r.Err("SetReadBuffer of -1", p.SetReadBuffer(-1))
	}},
	{"concurrent use and Close", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					if _, _, err := p.ReadFrom(make([]byte, 8)); err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				for {
					if _, err := p.WriteTo([]byte("x"), r.to(p)); err != nil {
						return
					}
				}
			})
		}
		time.AfterFunc(brief, func() { p.Close() })
		r.Value("all return", r.within(patience, wg.Wait))
	}},
}
