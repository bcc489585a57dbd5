//go:build linux

package hoststack

import (
	"fmt"
	"net"
	"time"
)

// to is p's address on the server's IPv4 address.
func (r *run) to(p net.PacketConn) *net.UDPAddr {
	return &net.UDPAddr{IP: r.server4.AsSlice(), Port: p.LocalAddr().(*net.UDPAddr).Port}
}

// to6 is to for IPv6.
func (r *run) to6(p net.PacketConn) *net.UDPAddr {
	return &net.UDPAddr{IP: r.server6.AsSlice(), Port: p.LocalAddr().(*net.UDPAddr).Port}
}

// noteReadFrom receives once and notes all results.
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
		for _, c := range [][2]string{{"udp", ":0"}, {"udp4", ":0"}, {"udp6", ":0"},
			{"udp", "0.0.0.0:0"}, {"udp", "[::]:0"}} {
			p, err := r.server.ListenPacket(c[0], c[1])
			r.must(err)
			r.Addr(c[0]+" "+c[1], p.LocalAddr())
			p.Close()
		}
	}},
	{"specific addresses print as given", func(r *run) {
		for _, c := range [][2]string{{"udp", r.server4.String()}, {"udp4", r.server4.String()},
			{"udp", r.server6.String()}, {"udp6", r.server6.String()}} {
			p, err := r.server.ListenPacket(c[0], net.JoinHostPort(c[1], "0"))
			r.must(err)
			r.Addr(c[0]+" "+r.plain(c[1]), p.LocalAddr())
			p.Close()
		}
	}},
	{"bad networks and addresses", func(r *run) {
		for _, c := range [][2]string{{"udp5", ":0"}, {"udp", "nonsense"}, {"udp", ":99999"},
			{"udp", ":nosuchservice"}, {"udp4", "[::1]:0"}, {"udp6", "127.0.0.1:0"}} {
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
		for _, c := range [][2]string{{"udp4", r.server4.String()}, {"udp4", ""}, {"udp", ""},
			{"udp4", r.alias4.String()}, {"udp6", ""}} {
			p2, err := r.server.ListenPacket(c[0], at0(c[1], p.LocalAddr()))
			r.Err(c[0]+" "+r.plain(c[1]), err)
			if err == nil {
				p2.Close()
			}
		}
	}},
	{"a wildcard port in use", func(r *run) {
		p := r.packet("udp", "")
		for _, c := range [][2]string{{"udp", ""}, {"udp4", ""}, {"udp6", ""},
			{"udp4", r.server4.String()}, {"udp6", r.server6.String()}} {
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
		_, err = r.client.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(203, 0, 113, 7)},
			&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
		r.Err("from an address that is not ours", err)
	}},
}
