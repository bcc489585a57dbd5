//go:build linux

package hoststack

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// piecesOnWire holds behaviours of what comes in fragments or behind extension headers, and of
// neighbours that move.
var piecesOnWire = []wireBehaviour{
	{"datagrams in fragments", func(w *wired) {
		for _, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			c := w.listenUDP(e.host())
			for _, n := range []int{0, 1, 8, 100, 1400, 1472, 1473, 3000, 8000} {
				for _, order := range fragmentOrders {
					name := fmt.Sprint(e, " ", n, " ", order.name)
					parts := w.inFragments(e, port(c.LocalAddr()), numbered(n))
					for _, i := range order.of(len(parts)) {
						w.deliver(parts[i])
					}
					w.Text(name, w.readsOnce(c, e))
				}
			}
		}
	}},
	{"datagrams in fragments, mixed", func(w *wired) {
		for _, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			a, b := w.listenUDP(e.host()), w.listenUDP(e.host())
			of := [][][]byte{w.inFragments(e, port(a.LocalAddr()), numbered(3000)),
				w.inFragments(e, port(b.LocalAddr()), numbered(2000)),
				w.inFragments(e, 9, numbered(2500))}
			for i := range 3 {
				for _, parts := range of {
					if i < len(parts) {
						w.deliver(parts[len(parts)-1-i])
					}
				}
			}
			w.Text(fmt.Sprint(e, " sent"), w.summaries())
			w.Text(fmt.Sprint(e, " first"), w.readsOnce(a, e))
			w.Text(fmt.Sprint(e, " second"), w.readsOnce(b, e))
		}
	}},
	{"fragments that overlap", func(w *wired) {
		for _, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			c := w.listenUDP(e.host())
			whole := w.transport(e, port(c.LocalAddr()), numbered(56)) // 64 bytes
			for _, cuts := range [][][2]int{
				{{0, 32}, {24, 64}},
				{{32, 64}, {0, 40}},
				{{0, 32}, {8, 24}, {32, 64}},
				{{0, 64}, {0, 64}},
				{{0, 32}, {32, 64}, {0, 32}},
				{{0, 32}, {0, 32}, {32, 64}},
				{{16, 32}, {0, 32}, {32, 64}},
				{{32, 64}, {32, 56}, {0, 32}},
			} {
				id := w.wirePort()
				for _, cut := range cuts {
					w.deliver(piece(e, whole, id, cut[0], cut[1], cut[1] < len(whole)))
				}
				w.Text(fmt.Sprint(e, " ", cuts), w.readsOnce(c, e))
			}
		}
	}},
	{"segments in fragments", func(w *wired) {
		for _, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			l, err := w.Listen("tcp", netip.AddrPortFrom(e.host(), 0).String())
			w.must(err)
			w.Cleanup(func() { l.Close() })
			syn := segment(w.wirePort(), l.Addr().(*net.TCPAddr).AddrPort().Port(), 1, 0, 2)
			sumIn(e.peer(), e.host(), 6, syn)
			id := w.wirePort()
			for _, cut := range [][2]int{{8, 20}, {0, 8}} {
				w.deliver(fragmentOf(e, 6, syn, id, cut[0], cut[1], cut[1] < len(syn)))
			}
			w.Text(e.String(), summary(w.next("the SYN-ACK", func(ip []byte) bool {
				p, _ := protocolOf(ip)
				return p == 6
			})))
		}
	}},
	{"extension headers", func(w *wired) {
		e := icmpError{v6: true}
		c := w.listenUDP(e.host())
		l, err := w.Listen("tcp", netip.AddrPortFrom(e.host(), 0).String())
		w.must(err)
		w.Cleanup(func() { l.Close() })
		padded := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
		for _, x := range []struct {
			name       string
			first      byte
			extensions func(next byte) []byte
		}{
			{"hop-by-hop", 0, padded},
			{"destination", 60, padded},
			{"both", 0, func(next byte) []byte { return append(padded(60), padded(next)...) }},
			{"an unknown option to be skipped", 60, func(next byte) []byte {
				return []byte{next, 0, 0x1e, 4, 0, 0, 0, 0}
			}},
			{"an unknown option to be discarded", 60, func(next byte) []byte {
				return []byte{next, 0, 0x5e, 4, 0, 0, 0, 0}
			}},
			{"a fragment that is whole", 44, func(next byte) []byte {
				return []byte{next, 0, 0, 0, 0, 0, 0, 1}
			}},
			{"a fragment that is whole, behind options", 60, func(next byte) []byte {
				return append(padded(44), next, 0, 0, 0, 0, 0, 0, 2)
			}},
			{"options behind a fragment that is whole", 44, func(next byte) []byte {
				return append([]byte{60, 0, 0, 0, 0, 0, 0, 3}, padded(next)...)
			}},
			// The last: Linux answers the SYN's, too, unless it did so less than a second ago, and
			// may do so after the look at what is sent.
			{"an unknown option to be answered", 60, func(next byte) []byte {
				return []byte{next, 0, 0x9e, 4, 0, 0, 0, 0}
			}},
		} {
			w.deliver(packet(e.peer(), e.host(), 17, datagram(7, port(c.LocalAddr()), "behind"),
				option{first: x.first, extensions: x.extensions(17)}))
			w.Text(x.name+", sent", w.summaries())
			w.Text(x.name+", read", w.readsOnce(c, e))
			from := w.wirePort()
			w.deliver(packet(e.peer(), e.host(), 6, segment(from,
				l.Addr().(*net.TCPAddr).AddrPort().Port(), 1, 0, 2),
				option{first: x.first, extensions: x.extensions(6)}))
			answer := "none"
			if x.name[:3] != "an " || strings.HasSuffix(x.name, "skipped") {
				answer = summary(w.next("the SYN-ACK", is(6, from)))
			} else {
				w.summaries()
			}
			w.Text(x.name+", SYN", answer)
		}
	}},
	{"path MTU told of a fragment", func(w *wired) {
		for i, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			for j, connected := range []bool{false, true} {
				peer := nth(e.peer(), 90+2*i+j)
				var c udpConn
				var to *net.UDPAddr
				if connected {
					c = w.dialUDP(peer)
				} else {
					c, to = w.listenUDP(e.host()), peerAddr(peer, 9)
				}
				_, _, err := c.WriteMsgUDP(make([]byte, 3000), nil, to)
				w.must(err)
				fragment := func(ip []byte) bool {
					return ip[0]>>4 == 4 && ip[9] == 17 || ip[0]>>4 == 6 && ip[6] == 44
				}
				first := w.next("a fragment", fragment)
				for range 2 { // those that have waited for the peer's MAC come by themselves
					w.next("a fragment", fragment)
				}
				w.deliver(tooBig(first, 1300))
				w.answers()
				for _, n := range []int{1400, 1401} {
					_, _, err = c.WriteMsgUDP(make([]byte, n), nil, to)
					result := errno(err)
					if err == nil {
						result += ": " + w.fragments(v6)
					}
					w.Text(fmt.Sprint(e, " ", connected, " ", n), result)
				}
			}
		}
	}},
	{"a neighbour that moves", func(w *wired) {
		for i, m := range moves {
			for _, from := range []bool{false, true} {
				w.neighbourMoves(m, i*2+map[bool]int{true: 1}[from], from)
			}
		}
	}},
}

// fragmentOrders lists orders in which fragments come.
var fragmentOrders = []struct {
	name string
	of   func(n int) []int
}{
	{"in order", func(n int) (all []int) {
		for i := range n {
			all = append(all, i)
		}
		return all
	}},
	{"backwards", func(n int) (all []int) {
		for i := range n {
			all = append(all, n-1-i)
		}
		return all
	}},
	{"each twice", func(n int) (all []int) {
		for i := range n - 1 {
			all = append(all, i, i)
		}
		return append(all, n-1)
	}},
}

// numbered returns n bytes that differ.
func numbered(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return string(b)
}

// transport returns a datagram of the peer's with its checksum.
func (w *wired) transport(e icmpError, to uint16, payload string) []byte {
	d := datagram(7, to, payload)
	sumIn(e.peer(), e.host(), 17, d)
	return d
}

// inFragments returns the packets of a datagram that is sent in at least two fragments.
func (w *wired) inFragments(e icmpError, to uint16, payload string) (all [][]byte) {
	d, id := w.transport(e, to, payload), w.wirePort()
	size := min(1448, max(8, (len(d)/2)&^7))
	if len(d) == 8 { // a last one would be empty
		return [][]byte{packet(e.peer(), e.host(), 17, d, option{})}
	}
	for at := 0; at < len(d); at += size {
		end := min(at+size, len(d))
		all = append(all, piece(e, d, id, at, end, end < len(d)))
	}
	return all
}

// piece holds a fragment of a datagram.
func piece(e icmpError, d []byte, id uint16, at, end int, more bool) []byte {
	return fragmentOf(e, 17, d, id, at, end, more)
}

// fragmentOf returns a fragment of what the peer sends, whose checksum is there.
func fragmentOf(e icmpError, protocol byte, d []byte, id uint16, at, end int, more bool) []byte {
	var o option
	field := uint16(at)
	if e.v6 {
		if more {
			field |= 1
		}
		o.first = 44
		o.extensions = binary.BigEndian.AppendUint16([]byte{protocol, 0}, field)
		o.extensions = append(o.extensions, 0, 0, byte(id>>8), byte(id))
	} else if o.fragment = field / 8; more {
		o.fragment |= 0x2000
	}
	// 255 has no checksum that packet would compute
	ip := packet(e.peer(), e.host(), 255, d[at:end], o)
	if e.v6 {
		return ip
	}
	ip[9] = protocol
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], sum(ip[:20], 0))
	return ip
}

// readsOnce reads until a datagram that is sent now, and describes those before it.
func (w *wired) readsOnce(c udpConn, e icmpError) string {
	w.Helper()
	const last = "the last one"
	w.answers()
	w.deliver(packet(e.peer(), e.host(), 17, datagram(7, port(c.LocalAddr()), last), option{}))
	var all []string
	for buf := make([]byte, 1<<16); ; {
		w.must(c.SetDeadline(soon()))
		n, from, err := c.ReadFrom(buf)
		switch {
		case err != nil:
			all = append(all, errno(err))
		case string(buf[:n]) == last:
			return fmt.Sprint(all)
		case string(buf[:n]) == numbered(n):
			all = append(all, fmt.Sprint(n, " bytes from ", from))
		default:
			all = append(all, fmt.Sprintf("%d other bytes from %v", n, from))
		}
	}
}

// movedMAC tells where an address is after a move.
var movedMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x77}

// moves lists what tells that an address is at another MAC, or does not.
var moves = []struct {
	name string
	v6   bool
	tell func(w *wired, a netip.Addr)
}{
	{"gratuitous request", false, func(w *wired, a netip.Addr) {
		w.sendARP(everybody, 1, a, nil, a)
	}},
	{"gratuitous reply", false, func(w *wired, a netip.Addr) {
		w.sendARP(everybody, 2, a, movedMAC, a)
	}},
	{"request for us", false, func(w *wired, a netip.Addr) {
		w.sendARP(everybody, 1, a, nil, wireHost4)
	}},
	{"request for us alone", false, func(w *wired, a netip.Addr) {
		w.sendARP(w.mac, 1, a, nil, wireHost4)
	}},
	{"probe", false, func(w *wired, a netip.Addr) {
		w.sendARP(everybody, 1, netip.IPv4Unspecified(), nil, a)
	}},
	{"another operation", false, func(w *wired, a netip.Addr) {
		w.sendARP(everybody, 3, a, nil, a)
	}},
	{"unsolicited advertisement", true, func(w *wired, a netip.Addr) {
		w.sendNDP(netip.MustParseAddr("ff02::1"), 136, a, 0x20, 2, a)
	}},
	{"advertisement for us alone", true, func(w *wired, a netip.Addr) {
		w.sendNDP(wireHost6, 136, a, 0x20, 2, a)
	}},
	{"advertisement that does not override", true, func(w *wired, a netip.Addr) {
		w.sendNDP(netip.MustParseAddr("ff02::1"), 136, a, 0, 2, a)
	}},
	{"solicitation for us", true, func(w *wired, a netip.Addr) {
		w.sendNDP(netip.MustParseAddr("ff02::1:ff00:2"), 135, a, 0, 1, wireHost6)
	}},
	{"solicitation for us alone", true, func(w *wired, a netip.Addr) {
		w.sendNDP(wireHost6, 135, a, 0, 1, wireHost6)
	}},
}

// sendARP sends a packet of ARP from movedMAC.
func (w *wired) sendARP(to net.HardwareAddr, op byte, sender netip.Addr, target net.HardwareAddr,
	about netip.Addr) {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, movedMAC...)
	b = append(append(b, sender.AsSlice()...), append(target, make([]byte, 6-len(target))...)...)
	w.sendFrom(movedMAC, to, 0x0806, append(b, about.AsSlice()...))
}

// sendNDP sends a neighbour solicitation or advertisement from movedMAC, with an option of its
// address.
func (w *wired) sendNDP(to netip.Addr, kind byte, from netip.Addr, flags, option byte,
	about netip.Addr) {
	body := append([]byte{kind, 0, 0, 0, flags, 0, 0, 0}, about.AsSlice()...)
	body = append(append(body, option, 1), movedMAC...)
	mac := w.mac
	if to.IsMulticast() {
		mac = append(net.HardwareAddr{0x33, 0x33}, to.AsSlice()[12:]...)
	}
	w.sendFrom(movedMAC, mac, 0x86dd, packet(from, to, 58, body, optionHops(255)))
}

func optionHops(n byte) option { return option{hops: n} }

// neighbourMoves makes the host send to an address before and after the move, by connected sockets
// or not, and notes where what it sends goes, and how often it has answered.
func (w *wired) neighbourMoves(m struct {
	name string
	v6   bool
	tell func(w *wired, a netip.Addr)
}, i int, connected bool) {
	w.Helper()
	e := icmpError{v6: m.v6}
	peer := nth(e.peer(), 101+i)
	c, err := w.DialUDP("udp", nil, peerAddr(peer, 10))
	w.must(err)
	w.Cleanup(func() { c.Close() })
	send := func() string {
		w.Helper()
		w.write1(c, "x")
		return nameOf(w.nextTo(is(17, 10)))
	}
	if !connected {
		c = w.listenUDP(e.host())
		send = func() string {
			w.Helper()
			_, err := c.WriteTo([]byte("x"), peerAddr(peer, 10))
			w.must(err)
			return nameOf(w.nextTo(is(17, 10)))
		}
	}
	before := []string{send(), send(), send()}
	w.answers()
	w.mu.Lock()
	w.told = 0
	w.mu.Unlock()
	m.tell(w, peer)
	w.answers()
	w.mu.Lock()
	told := w.told
	w.mu.Unlock()
	w.Text(fmt.Sprint(m.name, " ", connected), fmt.Sprint(slices.Compact(before), " then ", send(),
		" answered ", told))
}

// nameOf says which of the peer's hardware addresses it is.
func nameOf(mac net.HardwareAddr) string {
	switch string(mac) {
	case string(wirePeerMAC):
		return "the first"
	case string(movedMAC):
		return "the second"
	}
	return "another"
}

// messagesOf returns datagrams to a peer, or to that of a connected socket.
func messagesOf(to *net.UDPAddr, sizes ...int) (all []stack.Message) {
	for _, n := range sizes {
		m := stack.Message{Buffers: [][]byte{make([]byte, n)}}
		if to != nil {
			m.Addr = to
		}
		all = append(all, m)
	}
	return all
}
