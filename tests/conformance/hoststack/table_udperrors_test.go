//go:build linux

package hoststack

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

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
