//go:build linux

package hoststack

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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
				if network == "udp4" && to.IP.To4() == nil ||
					network == "udp6" && to.IP.To4() != nil {
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
	{"datagrams of one call, read as one or one by one", func(r *run) {
		for _, network := range []string{"udp4", "udp6", "udp"} {
			for gro := range 2 {
				p, c := r.packet(network, ""), r.free(network, "")
				r.must(setUDPOption(p, unix.SOL_UDP, unix.UDP_GRO, gro))
				to := r.to(p)
				if network == "udp6" {
					to = r.to6(p)
				}
				for _, n := range []int{1, 99, 100, 101, 200, 1050, 6400} {
					r.Text(fmt.Sprint(network, " UDP_GRO ", gro, ", ", n, " bytes"),
						r.segmentsRead(p, c, to, n))
				}
				p.Close()
				c.Close()
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
		r.write(c, "hello") // datagrams that wait for address resolution may be overtaken
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

// segmentsRead makes c send n bytes as datagrams of 100, and describes how p reads them once all
// have come: a kernel's loopback and virtual cables carry them as one, whereas frames come in turn.
func (r *run) segmentsRead(p, c udpConn, to *net.UDPAddr, n int) string {
	r.Helper()
	var before uint64
	if r.datagrams != nil {
		before = r.datagrams()
	}
	_, _, err := c.WriteMsgUDP(make([]byte, n), segmentControl(100), to)
	r.must(err)
	r.until("all datagrams coming", func() bool {
		return r.datagrams == nil || r.datagrams()-before == uint64(n+99)/100
	})
	var reads []string
	for left := n; left > 0; {
		oob := make([]byte, 64)
		m, nn, flags, _, err := p.ReadMsgUDP(make([]byte, 1<<16), oob)
		r.must(err)
		left -= m
		reads = append(reads, fmt.Sprintf("%d %x %#x", m, oob[:nn], flags))
	}
	return squeeze(reads)
}
