//go:build linux

package hoststack

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// hostAddresses are behaviours of a host that has more addresses than loopback.
var hostAddresses = []behaviour{
	{"a udp socket bound to IPv6 sends to IPv4", func(r *run) {
		for _, to := range []netip.Addr{r.server4, r.client4, r.alias4,
			netip.MustParseAddr("127.0.0.1")} {
			for _, from := range []netip.Addr{r.server6, netip.IPv6Loopback()} {
				p, err := r.server.ListenPacket("udp", net.JoinHostPort(from.String(), "0"))
				r.must(err)
				r.closed(p)
				_, err = p.WriteTo([]byte("x"), &net.UDPAddr{IP: to.AsSlice(), Port: 9})
				r.Err(fmt.Sprint("WriteTo ", from.IsLoopback(), " ", r.plain(to.String())), err)
				_, err = p.(udpConn).WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(to, 9))
				r.Err(fmt.Sprint("WriteToUDPAddrPort ", from.IsLoopback(), " ",
					r.plain(to.String())), err)
				_, _, err = p.(udpConn).WriteMsgUDP([]byte("x"), nil,
					&net.UDPAddr{IP: to.AsSlice(), Port: 9})
				r.Err(fmt.Sprint("WriteMsgUDP ", from.IsLoopback(), " ", r.plain(to.String())), err)
			}
		}
	}},
	{"DialUDP from IPv6 to IPv4", func(r *run) {
		for _, network := range []string{"udp", "udp6"} {
			for _, to := range []netip.Addr{r.server4, r.client4} {
				c, err := r.server.DialUDP(network, &net.UDPAddr{IP: r.server6.AsSlice()},
					&net.UDPAddr{IP: to.AsSlice(), Port: 9})
				r.Err(network+" "+r.plain(to.String()), err)
				if err == nil {
					_, err = c.Write([]byte("x"))
					r.Err("Write", err)
					c.Close()
				}
			}
		}
	}},
	{"from one address of our own to another", func(r *run) {
		lo4, lo6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
		for _, c := range []struct{ from, to netip.Addr }{
			{lo4, r.server4}, {lo4, r.alias4}, {lo6, r.server6}, {r.server4, lo4},
			{r.server6, lo6}, {r.server4, r.alias4},
			{netip.MustParseAddr("127.0.0.5"), r.server4},
		} {
			for _, bound := range []string{c.to.String(), ""} {
				r.converse(r.packet("udp", bound), c.from, c.to)
			}
		}
	}},
	{"TCP from loopback to an address of our own", func(r *run) {
		l := r.listen("tcp", "")
		for _, c := range []struct{ from, to netip.Addr }{
			{netip.MustParseAddr("127.0.0.1"), r.server4}, {netip.IPv6Loopback(), r.server6},
			{r.server4, netip.MustParseAddr("127.0.0.1")},
		} {
			conn, err := r.server.DialFrom(r.Context(), &net.TCPAddr{IP: c.from.AsSlice()},
				patience, "tcp", at(c.to, l.Addr()))
			r.Err("dial", err)
			if err != nil {
				continue
			}
			r.Addr("local", conn.LocalAddr())
			s, err := l.Accept()
			r.must(err)
			r.Addr("remote", s.RemoteAddr())
			conn.Close()
			s.Close()
		}
	}},
	{"dialling a wildcard listener's own address", func(r *run) {
		for _, listen := range []string{"tcp", "tcp4", "tcp6"} {
			l := r.listen(listen, "")
			_, port, _ := net.SplitHostPort(l.Addr().String())
			for _, dial := range []string{"tcp", "tcp4", "tcp6"} {
				for _, to := range []string{l.Addr().String(), "0.0.0.0:" + port,
					"[::]:" + port, ":" + port} {
					c, err := r.server.DialContext(r.Context(), dial, to)
					r.Err(fmt.Sprint(listen, " ", dial, " ", r.plain(to)), err)
					if err == nil {
						r.Text("remote", fmt.Sprint(c.RemoteAddr()))
						c.Close()
					}
				}
			}
			l.Close() // the next one, for the other version of IP, may get the same port
		}
	}},
	{"DialTCP and DialUDP to the wildcard address", func(r *run) {
		for _, network := range []string{"4", "6", ""} {
			for _, ip := range []net.IP{nil, net.IPv4zero, net.IPv6zero, net.IPv4zero.To4()} {
				l := r.listen("tcp", "")
				c, err := r.server.DialTCP("tcp"+network, nil,
					&net.TCPAddr{IP: ip, Port: l.Addr().(*net.TCPAddr).Port})
				r.Err(fmt.Sprintf("tcp%s %v", network, ip), err)
				if err == nil {
					r.Addr("remote", c.RemoteAddr())
					r.Addr("local", c.LocalAddr())
					c.Close()
				}
				u, err := r.server.DialUDP("udp"+network, nil, &net.UDPAddr{IP: ip, Port: 9})
				r.Err(fmt.Sprintf("udp%s %v", network, ip), err)
				if err == nil {
					r.Addr("remote", u.RemoteAddr())
					r.Addr("local", u.LocalAddr())
					u.Close()
				}
			}
		}
	}},
}

// unnamed is a UDP socket of the server on a port that has no name: of few ports one may be given
// again, on another address.
func (r *run) unnamed(at netip.Addr) net.PacketConn {
	r.Helper()
	for {
		p, err := r.server.ListenPacket("udp", net.JoinHostPort(at.String(), "0"))
		r.must(err)
		r.closed(p)
		if _, named := r.names[fmt.Sprint(p.LocalAddr().(*net.UDPAddr).Port)]; !named {
			return p
		}
	}
}

// converse has the server send a request to its own socket p at the address to, from the address
// from, and has p answer.
func (r *run) converse(p udpConn, from, to netip.Addr) {
	q := r.unnamed(from)
	r.must(q.SetDeadline(time.Now().Add(ample)))
	r.must(p.SetDeadline(time.Now().Add(ample)))
	_, err := q.WriteTo([]byte("question"),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(p.LocalAddr().(*net.UDPAddr).Port))))
	r.Err("WriteTo "+r.plain(to.String()), err)
	peer := r.noteReadFrom("question", p, 64)
	if peer == nil {
		return
	}
	_, err = p.WriteTo([]byte("answer"), peer)
	r.Err("answer", err)
	b := make([]byte, 64)
	n, asked, err := q.ReadFrom(b)
	r.Text("answer bytes", string(b[:n]))
	r.Err("read the answer", err)
	// otherwise the table of UDP data compares the transfer
	if !p.LocalAddr().(*net.UDPAddr).IP.IsUnspecified() {
		r.Addr("answer from", asked)
	}
}
