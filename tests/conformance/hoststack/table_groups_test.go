//go:build linux

package hoststack

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
)

// The groups of multicast DNS (RFC 6762) and others without members; mdns6 and other6 have site
// scope, and their addresses have no zone.
var (
	mdns4, mdns6   = netip.MustParseAddr("224.0.0.251"), netip.MustParseAddr("ff05::fb")
	other4, other6 = netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff05::1:3")
)

// udpAddr joins an address and the port of p, if any.
func udpAddr(a netip.Addr, p net.PacketConn) *net.UDPAddr {
	u := &net.UDPAddr{IP: a.AsSlice()}
	if p != nil {
		u.Port = p.LocalAddr().(*net.UDPAddr).Port
	}
	return u
}

// member is a socket of the server from ListenMulticastUDP, on the port of like, or on a new port.
func (r *run) member(network string, group netip.Addr, like net.PacketConn) udpConn {
	r.Helper()
	c, err := r.server.ListenMulticastUDP(network, udpAddr(group, like))
	r.must(err)
	r.closed(c)
	r.Port("port", c.LocalAddr())
	r.must(c.SetDeadline(soon()))
	return c
}

// tell sends what to a group, at the port of p, from the client.
func (r *run) tell(group netip.Addr, p net.PacketConn, what string) {
	r.Helper()
	network := "udp4"
	if group.Is6() {
		network = "udp6"
	}
	_, err := r.free(network, "").WriteTo([]byte(what), udpAddr(group, p))
	r.must(err)
}

// hears notes whether p receives datagrams to a group. The datagram to the host that follows ends
// the loop: p always receives it.
func (r *run) hears(name string, p net.PacketConn, group netip.Addr) {
	r.Helper()
	r.tell(group, p, "group")
	host := r.server4
	if group.Is6() {
		host = r.server6
	}
	r.tell(host, p, "host")
	heard := 0
	for b := make([]byte, 16); ; heard++ {
		n, _, err := p.ReadFrom(b)
		r.must(err)
		if string(b[:n]) == "host" {
			break
		}
	}
	r.Value(name+" hears", heard)
}

// silent notes whether p has nothing to read.
func (r *run) silent(name string, p net.PacketConn) {
	r.must(p.SetReadDeadline(time.Now().Add(2 * brief)))
	r.noteReadFrom(name, p, 64)
	r.must(p.SetReadDeadline(soon()))
}

var udpGroups = []behaviour{
	{"ListenMulticastUDP hears its group", func(r *run) {
		for _, c := range []struct {
			network string
			group   netip.Addr
		}{{"udp", mdns4}, {"udp4", mdns4}, {"udp", mdns6}, {"udp6", mdns6}} {
			p := r.member(c.network, c.group, nil)
			r.Addr(c.network+" local", p.LocalAddr())
			r.tell(c.group, p, "question")
			r.noteReadFrom("question", p, 64)
			r.hears("the group", p, c.group)
			other := other4
			if c.group.Is6() {
				other = other6
			}
			r.hears("another group", p, other)
		}
	}},
	{"two members on a port hear the group, the newest what is for the host", func(r *run) {
		for _, group := range []netip.Addr{mdns4, mdns6} {
			a := r.member("udp", group, nil)
			b := r.member("udp", group, a)
			r.tell(group, a, "both")
			r.noteReadFrom("first", a, 64)
			r.noteReadFrom("second", b, 64)
			host := map[bool]netip.Addr{true: r.server4, false: r.server6}[group.Is4()]
			r.tell(host, a, "newest")
			r.noteReadFrom("newest", b, 64)
			r.silent("oldest", a)
			r.must(b.Close())
			r.tell(host, a, "the one left")
			r.noteReadFrom("the one left", a, 64)
		}
	}},
	{"ListenPacket on the address of a group", func(r *run) {
		for _, c := range []struct {
			network string
			group   netip.Addr
		}{{"udp", mdns4}, {"udp4", mdns4}, {"udp", mdns6}, {"udp6", mdns6}} {
			p, err := r.server.ListenPacket(c.network, net.JoinHostPort(c.group.String(), "0"))
			r.must(err)
			r.closed(p)
			r.must(p.SetDeadline(soon()))
			r.Port("port", p.LocalAddr())
			r.Addr(c.network, p.LocalAddr())
			r.hears("before anybody has joined", p, c.group)
			r.Err("JoinGroup", groups(p).JoinGroup(nil, udpAddr(c.group, nil)))
			r.hears("after it has joined", p, c.group)
			r.Err("LeaveGroup", groups(p).LeaveGroup(nil, udpAddr(c.group, nil)))
			r.hears("after it has left", p, c.group)
			again, err := r.server.ListenPacket(c.network,
				net.JoinHostPort(c.group.String(), fmt.Sprint(p.LocalAddr().(*net.UDPAddr).Port)))
			r.Err("the port again", err)
			r.closed(again)
		}
	}},
	{"a socket on the wildcard address hears what another has joined", func(r *run) {
		p := r.packet("udp4", "")
		q := r.packet("udp4", "")
		r.hears("before", p, mdns4)
		r.must(groups(q).JoinGroup(nil, udpAddr(mdns4, nil)))
		r.hears("joined", p, mdns4)
		r.must(q.Close())
		r.hears("closed", p, mdns4)
	}},
	{"a socket on one address hears no group", func(r *run) {
		p := r.packet("udp4", r.server4.String())
		r.Err("JoinGroup", groups(p).JoinGroup(nil, udpAddr(mdns4, nil)))
		r.hears("member", p, mdns4)
		c := r.connected(r.packet("udp4", r.server4.String()))
		r.Err("JoinGroup", groups(c).JoinGroup(nil, udpAddr(mdns4, nil)))
	}},
	{"who may have the port of a group's socket", func(r *run) {
		p := r.member("udp4", mdns4, nil)
		for _, c := range [][2]string{
			{"udp4", ""}, {"udp", ""}, {"udp4", r.server4.String()}, {"udp4", other4.String()},
			{"udp6", other6.String()}, {"udp", mdns4.String()},
		} {
			q, err := r.server.ListenPacket(c[0], at0(c[1], p.LocalAddr()))
			r.Err(c[0]+" "+r.plain(c[1]), err)
			if err == nil {
				q.Close()
			}
		}
		q := r.packet("udp4", "")
		_, err := r.server.ListenMulticastUDP("udp4", udpAddr(mdns4, q))
		r.Err("ListenMulticastUDP on a port in use", err)
	}},
	{"what ListenMulticastUDP refuses", func(r *run) {
		for _, c := range []struct {
			network string
			group   *net.UDPAddr
		}{
			{"udp", nil}, {"udp4", &net.UDPAddr{Port: 9}}, {"tcp", udpAddr(mdns4, nil)},
			{"udp5", udpAddr(mdns4, nil)},
			{"udp4", udpAddr(r.server4, nil)}, {"udp", udpAddr(r.server6, nil)},
			{"udp4", udpAddr(netip.MustParseAddr("203.0.113.7"), nil)},
		} {
			p, err := r.server.ListenMulticastUDP(c.network, c.group)
			r.Err(fmt.Sprint(c.network, " ", r.plain(fmt.Sprint(c.group))), err)
			if err == nil {
				p.Close()
			}
		}
	}},
	{"joining and leaving what cannot be", func(r *run) {
		p := r.packet("udp", "")
		g := groups(p)
		for _, a := range []netip.Addr{mdns4, mdns6} {
			r.Text("leave before", r.sentinels(g.LeaveGroup(nil, udpAddr(a, nil))))
			r.Text("join", r.sentinels(g.JoinGroup(nil, udpAddr(a, nil))))
			r.Text("join again", r.sentinels(g.JoinGroup(nil, udpAddr(a, nil))))
			r.Text("leave", r.sentinels(g.LeaveGroup(nil, udpAddr(a, nil))))
			r.Text("leave again", r.sentinels(g.LeaveGroup(nil, udpAddr(a, nil))))
		}
		for _, a := range []netip.Addr{r.server4, r.server6, netip.MustParseAddr("255.255.255.255"),
			netip.IPv4Unspecified()} {
			r.Text("join "+r.plain(a.String()), r.sentinels(g.JoinGroup(nil, udpAddr(a, nil))))
		}
	}},
	{"loopback of what is sent to a group", func(r *run) {
		for _, group := range []netip.Addr{mdns4, mdns6} {
			p := r.member("udp", group, nil)
			q := r.packet("udp", "")
			for _, c := range []struct {
				name string
				from net.PacketConn
			}{{"member", p}, {"another", q}} {
				_, err := c.from.WriteTo([]byte("by default"), udpAddr(group, p))
				r.Err(c.name+" sends", err)
				for _, on := range []bool{false, true} {
					r.Err("SetMulticastLoopback", groups(c.from).SetMulticastLoopback(on))
					_, err := c.from.WriteTo(fmt.Append(nil, c.name, " loopback ", on),
						udpAddr(group, p))
					r.Err(c.name+" sends", err)
				}
			}
			for range 3 { // member: on; another: by default, on
				r.noteRead("heard", p)
			}
			r.silent("more", p)
		}
	}},
	{"time to live and source of what is sent to a group", func(r *run) {
		for _, group := range []netip.Addr{mdns4, other4, mdns6} {
			p := r.packet("udp", "")
			for _, ttl := range []int{-2, 256, 1, 5, 255, -1} {
				if ttl < -1 || ttl > 255 {
					r.Text("bad TTL", r.sentinels(groups(p).SetMulticastTTL(ttl)))
					continue
				}
				_, err := p.WriteTo(fmt.Append(nil, "before ", group, ttl), udpAddr(group, p))
				r.must(err)
				r.Text("before", r.datagram(fmt.Sprint("before ", group, ttl)))
				r.Err(fmt.Sprint("SetMulticastTTL ", ttl), groups(p).SetMulticastTTL(ttl))
			}
			_, err := p.WriteTo(fmt.Append(nil, "last ", group), udpAddr(group, p))
			r.must(err)
			r.Text("last", r.datagram(fmt.Sprint("last ", group)))
		}
	}},
	{"a group is sent to from the address the caller names", func(r *run) {
		p := r.packet("udp4", "")
		r.must(groups(p).SetMulticastTTL(9))
		for _, from := range []netip.Addr{r.alias4, r.server4} {
			for _, to := range []netip.Addr{mdns4, netip.MustParseAddr("192.0.2.255")} {
				what := fmt.Sprint(from, "to", to)
				_, _, err := p.WriteMsgUDP([]byte(what),
					(&ipv4.ControlMessage{Src: from.AsSlice()}).Marshal(), udpAddr(to, p))
				r.Err("WriteMsgUDP", err)
				r.Text("sent", r.find(what, func(packet []byte) string {
					if packet[0]>>4 != 4 || !bytes.HasSuffix(packet, []byte(what)) {
						return ""
					}
					return fmt.Sprint("TTL ", packet[8], " from ",
						r.plain(net.IP(packet[12:16]).String()))
				}))
			}
		}
	}},
	{"time to live of what is sent to a host, or to all", func(r *run) {
		for _, to := range []netip.Addr{r.client4, netip.MustParseAddr("192.0.2.255"), r.client6} {
			network := map[bool]string{true: "udp4", false: "udp6"}[to.Is4()]
			c, p := r.free(network, ""), r.packet(network, "")
			for i, ttl := range []int{-2, 256, 0, 5, 255, -1} {
				if ttl < -1 || ttl > 255 || ttl == 0 && to.Is4() {
					r.Text("bad TTL", r.sentinels(groups(p).SetTTL(ttl)))
					continue
				}
				if ttl != 0 {
					r.Err(fmt.Sprint("SetTTL ", ttl), groups(p).SetTTL(ttl))
				}
				what := fmt.Sprint(to, "with", i)
				_, err := p.WriteTo([]byte(what), udpAddr(to, c))
				r.Err("WriteTo", err)
				r.Text("sent", r.datagram(what))
			}
		}
	}},
	{"a time to live of 0", func(r *run) {
		r.Text("SetMulticastTTL", r.sentinels(groups(r.packet("udp4", "")).SetMulticastTTL(0)))
		r.Text("SetTTL", r.sentinels(groups(r.packet("udp4", "")).SetTTL(0)))
	}},
	{"DialUDP to a group", func(r *run) {
		for _, group := range []netip.Addr{mdns4, mdns6} {
			p := r.member("udp", group, nil)
			c, err := r.client.DialUDP("udp", nil, udpAddr(group, p))
			r.must(err)
			r.closed(c)
			r.Addr("local", c.LocalAddr())
			r.Addr("remote", c.RemoteAddr())
			r.write(c, "question")
			from := r.noteReadFrom("question", p, 64)
			_, err = p.WriteTo([]byte("answer"), from)
			r.must(err)
			r.must(c.SetReadDeadline(time.Now().Add(2 * brief)))
			r.noteRead("the answer of somebody who is not the group", c)
		}
	}},
	{"large datagrams to a group", func(r *run) {
		for _, group := range []netip.Addr{mdns4, mdns6} {
			p := r.member("udp", group, nil)
			r.tell(group, p, string(pattern(9000)))
			b := make([]byte, 1<<14)
			n, _, err := p.ReadFrom(b)
			r.must(err)
			r.Value("same", string(b[:n]) == string(pattern(9000)))
		}
	}},
	{"what routers are told", func(r *run) {
		for _, group := range []netip.Addr{mdns4, other4, mdns6} {
			p := r.member("udp", group, nil)
			r.Text("joined", r.report(group, 4))
			r.must(p.Close())
			r.Text("left by Close", r.report(group, 3))
		}
		for _, group := range []netip.Addr{netip.MustParseAddr("239.9.9.9"),
			netip.MustParseAddr("ff05::9:9")} {
			p := r.packet("udp", "")
			r.must(groups(p).JoinGroup(nil, udpAddr(group, nil)))
			r.Text("joined", r.report(group, 4))
			r.must(groups(p).LeaveGroup(nil, udpAddr(group, nil)))
			r.Text("left", r.report(group, 3))
		}
	}},
}
