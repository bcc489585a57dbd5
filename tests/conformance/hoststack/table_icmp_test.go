//go:build linux

package hoststack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// wireBehaviour is one tested use of a host on a wire.
type wireBehaviour struct {
	name string
	run  func(w *wired)
}

// on runs the behaviour and returns its notes.
func (b wireBehaviour) on(w *wired) []string {
	// both ask for the peer's Ethernet addresses now, so that answers come in order later
	w.answers()
	echo := []byte{128, 0, 0, 0, 0, 1, 0, 1}
	w.deliver(packet(wirePeer6, wireHost6, 58, echo, option{}))
	w.next("the answer to an echo request", func(ip []byte) bool {
		return ip[0]>>4 == 6 && ip[6] == 58 && ip[40] == 129
	})
	for _, c := range w.probes {
		w.probed(c)
	}
	b.run(w)
	return w.lines
}

// byDesignOnWire has the reasons of those that differ.
var byDesignOnWire = map[string]string{
	"ICMP errors about later fragments": "Linux takes what a later fragment of IPv4 begins with " +
		"for ports",
	"IPV6_TCLASS of -1": "by RFC 3542 section 6.5 it is the default, of which Linux 6.18 makes 255",
	"fragments that overlap": "Linux ignores a fragment whose bytes have all come, netstack only " +
		"one that is the same as another (RFC 5722 section 3)",
}

// byDesignOnWireOfHost adds to byDesignOnWire for stacks on the host's own addresses.
var byDesignOnWireOfHost = map[string]string{
	"ICMP errors about later fragments": byDesignOnWire["ICMP errors about later fragments"],
	"IPV6_TCLASS of -1":                 byDesignOnWire["IPV6_TCLASS of -1"],
}

// onWire are behaviours that depend on single frames.
var onWire = []wireBehaviour{
	{"ICMP errors to connected UDP sockets", func(w *wired) {
		for _, e := range icmpErrors {
			c := w.dialUDP(e.peer())
			w.write1(c, "x")
			sent := w.next("the datagram", is(17, port(c.RemoteAddr())))
			w.deliver(quoting(sent, e.kind, e.code, e.value))
			w.arrives(c, "after")
			w.Text(e.String(), w.readsUntil(c, "after"))
		}
	}},
	{"ICMP errors to unconnected UDP sockets", func(w *wired) {
		for _, e := range icmpErrors {
			p := w.listenUDP(e.host())
			_, err := p.WriteTo([]byte("x"), peerAddr(e.peer(), 9))
			w.must(err)
			sent := w.next("the datagram", is(17, 9))
			w.deliver(quoting(sent, e.kind, e.code, e.value))
			w.deliver(packet(e.peer(), e.host(), 17,
				datagram(9, port(p.LocalAddr()), "after"), option{}))
			w.Text(e.String(), w.readsUntil(p, "after"))
			_, err = p.WriteTo([]byte("x"), peerAddr(e.peer(), 9))
			w.Text(e.String()+" WriteTo", errno(err))
		}
	}},
	{"ICMP errors seen by Write", func(w *wired) {
		for _, e := range icmpErrors {
			c := w.dialUDP(e.peer())
			w.write1(c, "x")
			sent := w.next("the datagram", is(17, port(c.RemoteAddr())))
			w.deliver(quoting(sent, e.kind, e.code, e.value))
			w.answers()
			_, err := c.Write([]byte("y"))
			w.Text(e.String(), errno(err))
			_, err = c.Write([]byte("z"))
			w.Text(e.String()+" again", errno(err))
		}
	}},
	{"writes after ICMP errors", func(w *wired) {
		peers := map[bool]int{} // no two have the same: paths are remembered
		for _, e := range []icmpError{{kind: 3, code: 3}, {kind: 3, code: 4, value: 1300},
			{kind: 3, code: 13}, {v6: true, kind: 1, code: 4}, {v6: true, kind: 2, value: 1300}} {
			for _, connected := range []bool{true, false} {
				for d := stack.PathMTUDont; d <= stack.PathMTUProbe; d++ {
					for _, a := range writesAfter {
						peers[e.v6]++
						w.Text(fmt.Sprint(e, " ", connected, " ", int(d), " ", a.name),
							w.writesAfter(e, nth(e.host(), peers[e.v6]), connected, d, a.write))
					}
				}
			}
		}
	}},
	{"ICMP errors to TCP dials", func(w *wired) {
		for _, e := range icmpErrors {
			w.Text(e.String(), w.dialTCP(e.peer(), func(syn []byte) {
				w.deliver(quoting(syn, e.kind, e.code, e.value))
			}))
		}
	}},
	{"forged ICMP errors to TCP dials", func(w *wired) {
		for _, f := range forgeries {
			for _, e := range []icmpError{{v6: false, kind: 3, code: 3}, {kind: 3, code: 13},
				{v6: true, kind: 1, code: 4}, {v6: true, kind: 1, code: 1}} {
				w.Text(f.name+", "+e.String(), w.dialTCP(e.peer(), func(syn []byte) {
					about := slices.Clone(syn)
					f.forge(about)
					w.deliver(quoting(about, e.kind, e.code, 0))
				}))
			}
		}
	}},
	{"forged ICMP errors to connected UDP sockets", func(w *wired) {
		for _, f := range forgeries {
			if f.sequence {
				continue
			}
			for _, e := range []icmpError{{kind: 3, code: 3}, {kind: 3, code: 4, value: 1300},
				{v6: true, kind: 1, code: 4}, {v6: true, kind: 2, value: 1300}} {
				c := w.dialUDP(e.peer())
				w.write1(c, strings.Repeat("x", 1400))
				about := w.next("the datagram", is(17, port(c.RemoteAddr())))
				f.forge(about)
				w.deliver(quoting(about, e.kind, e.code, e.value))
				w.arrives(c, "after")
				w.Text(f.name+", "+e.String(), w.readsUntil(c, "after"))
				w.write1(c, strings.Repeat("x", 1400))
				w.Text("then", w.fragments(e.v6))
			}
		}
	}},
	{"ICMP errors about later fragments", func(w *wired) {
		for _, e := range []icmpError{{kind: 3, code: 3}, {v6: true, kind: 1, code: 4}} {
			c := w.dialUDP(e.peer())
			w.write1(c, "x")
			about := w.next("the datagram", is(17, port(c.RemoteAddr())))
			if e.v6 {
				about[6] = 44
			} else {
				about[6], about[7] = 0, 100
			}
			w.deliver(quoting(about, e.kind, e.code, 0))
			w.arrives(c, "after")
			w.Text(e.String(), w.readsUntil(c, "after"))
		}
	}},
	{"a wrong checksum of ICMP", func(w *wired) {
		for _, e := range []icmpError{{kind: 3, code: 3}, {v6: true, kind: 1, code: 4}} {
			c := w.dialUDP(e.peer())
			w.write1(c, "x")
			about := quoting(w.next("the datagram", is(17, port(c.RemoteAddr()))), e.kind, e.code,
				0)
			_, at := protocolOf(about)
			about[at+3]++
			w.deliver(about)
			w.arrives(c, "after")
			w.Text(e.String(), w.readsUntil(c, "after"))
		}
	}},
	{"ICMP errors to TCP connections", func(w *wired) {
		for _, e := range icmpErrors {
			c, established := w.connectTCP(e.peer())
			w.deliver(quoting(established, e.kind, e.code, e.value))
			w.deliver(reply(established, 0x18, "after", 2))
			w.Text(e.String(), w.readsUntil(c, "after"))
			c.Close()
		}
	}},
	{"path MTU", func(w *wired) {
		for _, m := range []struct {
			v6   bool
			mtus []uint32
		}{{false, []uint32{1300, 1400, 1200, 552, 551, 68, 0}},
			{true, []uint32{1400, 1450, 1300, 1280, 1279, 0}}} {
			for i, mtu := range m.mtus {
				w.pathMTU(m.v6, i, mtu)
			}
		}
	}},
	{"path MTU by PathMTUDiscovery", func(w *wired) {
		for _, v6 := range []bool{false, true} {
			for d := stack.PathMTUDont; d <= stack.PathMTUProbe; d++ {
				w.discovery(v6, d)
			}
		}
	}},
	{"path MTU of batches", func(w *wired) {
		for i, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			peer := nth(e.peer(), 80+i)
			c := w.listenUDP(e.host())
			batch := func(name string, sizes ...int) {
				var ms []stack.Message
				for _, n := range sizes {
					ms = append(ms, stack.Message{Buffers: [][]byte{make([]byte, n)},
						Addr: peerAddr(peer, 9)})
				}
				n, err := writeBatch(c, ms)
				w.Text(fmt.Sprint(e, " ", name), fmt.Sprint(n, " ", errno(err)))
				for range n {
					w.Text("datagram", w.fragments(v6))
				}
			}
			batch("first", 1400, 1400, 3000, 100)
			_, err := c.WriteTo(make([]byte, 1400), peerAddr(peer, 9))
			w.must(err)
			w.deliver(tooBig(w.next("the datagram", is(17, 9)), 1300))
			w.answers()
			batch("then", 1400, 100, 3000, 1252, 1253, 1400)
			w.must(setDiscovery(c, stack.PathMTUDo))
			batch("do", 100, 1400, 100)
			batch("do, the first too long", 1400, 100)
			w.must(setDiscovery(c, stack.PathMTUProbe))
			batch("probe", 1400, 100, 3000)
		}
	}},
	{"path MTU told to another socket and by TCP", func(w *wired) {
		for i, v6 := range []bool{false, true} {
			e := icmpError{v6: v6}
			peer := nth(e.peer(), 60+i)
			tell := w.listenUDP(e.host())
			_, err := tell.WriteTo(make([]byte, 1400), peerAddr(peer, 9))
			w.must(err)
			sent := w.next("the datagram", is(17, 9))
			other := w.dialUDP(peer)
			w.write1(other, strings.Repeat("y", 1400))
			w.Text("before", w.fragments(v6))
			w.deliver(tooBig(sent, 1300))
			w.answers()
			w.write1(other, strings.Repeat("y", 1400))
			w.Text("another socket", w.fragments(v6))

			peer = nth(e.peer(), 70+i)
			_, established := w.connectTCP(peer)
			w.deliver(tooBig(established, 1300))
			w.answers()
			other = w.dialUDP(peer)
			w.write1(other, strings.Repeat("y", 1400))
			w.Text("told by TCP", w.fragments(v6))
		}
	}},
	{"frames to a group for one host", func(w *wired) {
		for _, mac := range []net.HardwareAddr{everybody, {1, 0, 0x5e, 0, 0, 1},
			{0x33, 0x33, 0, 0, 0, 1}} {
			w.toGroup(mac)
		}
	}},
	{"packets to several hosts", func(w *wired) {
		w.toSeveral()
	}},
	{"sources of sockets bound to a broadcast address", func(w *wired) {
		for _, bound := range []string{"10.77.0.255:0", "255.255.255.255:0"} {
			p, err := w.ListenPacket("udp4", bound)
			w.must(err)
			w.Cleanup(func() { p.Close() })
			for _, to := range []netip.Addr{wirePeer4, wireAll4, netip.MustParseAddr("224.0.0.9")} {
				_, err = p.WriteTo([]byte("x"), peerAddr(to, 9))
				if err != nil {
					w.Text(bound+" to "+to.String(), errno(err))
					continue
				}
				ip := w.next("the datagram", is(17, 9))
				w.Text(bound+" to "+to.String(), fmt.Sprint(net.IP(ip[12:16])))
			}
			c, err := w.DialUDP("udp4", p.LocalAddr().(*net.UDPAddr), peerAddr(wirePeer4, 10))
			w.Text("dial in use", errno(err))
			if err == nil {
				c.Close()
			}
			c, err = w.DialUDP("udp4", &net.UDPAddr{IP: udpIP(bound)}, peerAddr(wirePeer4, 10))
			w.Text("dial from "+bound, errno(err))
			if err != nil {
				continue
			}
			w.write1(c, "x")
			w.Text("connected", fmt.Sprint(net.IP(w.next("the datagram", is(17, 10))[12:16])))
			c.Close()
		}
	}},
	{"flow labels", func(w *wired) {
		labels := map[uint32]bool{}
		one := func(ip []byte) uint32 { return binary.BigEndian.Uint32(ip) & 0xfffff }
		for i := range 8 {
			c := w.dialUDP(wirePeer6)
			var own []uint32
			for range 3 {
				w.write1(c, "x")
				own = append(own, one(w.next("the datagram", is(17, port(c.RemoteAddr())))))
			}
			labels[own[0]] = true
			w.Text(fmt.Sprint("UDP ", i),
				fmt.Sprint(own[0] != 0, own[1] == own[0], own[2] == own[0]))
			conn, data := w.connectTCP(wirePeer6)
			w.write1(conn, "more data")
			// Linux has another label from a timeout on (sk_rethink_txhash), and resends "data",
			// which is not acknowledged, until the test has seen it.
			last := one(data)
			next := w.next("more data", func(ip []byte) bool {
				switch {
				case !is(6, port(conn.RemoteAddr()))(ip):
				case strings.HasSuffix(string(ip), "more data"):
					return true
				default:
					last = one(ip)
				}
				return false
			})
			labels[one(data)] = true
			w.Text(fmt.Sprint("TCP ", i), fmt.Sprint(one(data) != 0, last == one(next)))
			conn.Close()
		}
		w.Text("different ones", fmt.Sprint(len(labels) > 12))
		c := w.dialUDP(nth(wirePeer6, 90))
		w.write1(c, strings.Repeat("x", 3000))
		fragment := func(ip []byte) bool { return ip[0]>>4 == 6 && ip[6] == 44 }
		first, second := w.next("a fragment", fragment), w.next("a fragment", fragment)
		w.Text("fragments", fmt.Sprint(one(first) != 0, one(first) == one(second)))
	}},
	{"parameters that ICMPv6 points to", func(w *wired) {
		for _, p := range wrongParameters {
			for _, mac := range []net.HardwareAddr{w.mac, everybody} {
				w.deliverTo(mac, packet(wirePeer6, wireHost6, p.protocol, p.body, option{
					extensions: p.extensions, first: p.first}))
				w.Text(p.name+" "+to(mac), w.summaries())
			}
		}
	}},
}

// wires lists the stacks that are compared with a kernel on such a wire.
var wires = []struct {
	name    string
	open    func(*testing.T) *wired
	reasons map[string]string
}{
	{"rings", wiredStack, byDesignOnWire},
	{"packet sockets", wiredPackets, byDesignOnWire},
	{"the host's address", wiredHost, byDesignOnWireOfHost},
	{"the host's address, from rings", wiredHostRings, byDesignOnWireOfHost},
}

// TestWireSameAsKernel runs every behaviour on a kernel and on stacks, and compares.
func TestWireSameAsKernel(t *testing.T) {
	for _, b := range slices.Concat(onWire, controlOnWire, stampsOnWire, piecesOnWire,
		sackOnWire) {
		t.Run(b.name, func(t *testing.T) {
			var want []string
			t.Run("kernel", func(t *testing.T) { want = b.on(wiredKernel(t)) })
			for _, on := range wires {
				t.Run(on.name, func(t *testing.T) {
					compare(t, on.reasons[b.name], want, b.on(on.open(t)))
				})
			}
		})
	}
}

// icmpError is an error of ICMP or ICMPv6.
type icmpError struct {
	v6         bool
	kind, code byte
	value      uint32 // bytes 4 to 7
}

func (e icmpError) String() string {
	if e.v6 {
		return fmt.Sprintf("ICMPv6 %d/%d", e.kind, e.code)
	}
	return fmt.Sprintf("ICMP %d/%d", e.kind, e.code)
}

// icmpErrors are all that RFC 792, RFC 1812 and RFC 4443 know, and some that nobody knows.
var icmpErrors = func() (all []icmpError) {
	for code := range byte(17) {
		all = append(all, icmpError{false, 3, code, map[bool]uint32{true: 1300}[code == 4]})
	}
	for _, k := range [][2]byte{{4, 0}, {5, 1}, {11, 0}, {11, 1}, {12, 0}, {12, 1}, {30, 0}} {
		all = append(all, icmpError{false, k[0], k[1], 0})
	}
	for code := range byte(9) {
		all = append(all, icmpError{true, 1, code, 0})
	}
	for _, k := range [][2]byte{{2, 0}, {3, 0}, {3, 1}, {4, 0}, {4, 1}, {4, 2}, {4, 3}, {100, 0}} {
		all = append(all, icmpError{true, k[0], k[1], map[bool]uint32{true: 1300}[k[0] == 2]})
	}
	return all
}()

func (e icmpError) peer() netip.Addr {
	if e.v6 {
		return wirePeer6
	}
	return wirePeer4
}

func (e icmpError) host() netip.Addr {
	if e.v6 {
		return wireHost6
	}
	return wireHost4
}

// forgeries change what an ICMP error quotes to what was not sent.
var forgeries = []struct {
	name     string
	sequence bool // it is one of TCP's
	forge    func(ip []byte)
}{
	{"another source port", false, func(ip []byte) { ip[transportAt(ip)+1]++ }},
	{"another destination port", false, func(ip []byte) { ip[transportAt(ip)+3]++ }},
	{"another destination", false, func(ip []byte) { ip[destinationEnd(ip)]++ }},
	{"another protocol", false, func(ip []byte) {
		if ip[0]>>4 == 4 {
			ip[9] ^= 6 ^ 17
		} else {
			ip[6] ^= 6 ^ 17
		}
	}},
	{"a sequence number before", true, func(ip []byte) { addSequence(ip, -1) }},
	{"a sequence number behind", true, func(ip []byte) { addSequence(ip, 2) }},
	{"a sequence number far away", true, func(ip []byte) { addSequence(ip, 1<<30) }},
}

func transportAt(ip []byte) int {
	_, at := protocolOf(ip)
	return at
}

func destinationEnd(ip []byte) int {
	if ip[0]>>4 == 4 {
		return 19
	}
	return 39
}

func addSequence(ip []byte, n int) {
	b := ip[transportAt(ip)+4:]
	binary.BigEndian.PutUint32(b, binary.BigEndian.Uint32(b)+uint32(n))
}

func (w *wired) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func port(a net.Addr) uint16 { return a.(interface{ AddrPort() netip.AddrPort }).AddrPort().Port() }

func peerAddr(a netip.Addr, port uint16) *net.UDPAddr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port))
}

func udpIP(address string) net.IP {
	return netip.MustParseAddrPort(address).Addr().AsSlice()
}

// wirePort is the next port of the peer: no two sockets have the same.
func (w *wired) wirePort() uint16 {
	w.ports++
	return 20000 + w.ports
}

func (w *wired) dialUDP(peer netip.Addr) udpConn {
	w.Helper()
	c, err := w.DialUDP("udp", nil, peerAddr(peer, w.wirePort()))
	w.must(err)
	w.Cleanup(func() { c.Close() })
	w.must(c.SetDeadline(soon()))
	return c
}

func (w *wired) listenUDP(host netip.Addr) udpConn {
	w.Helper()
	p, err := w.ListenUDP("udp", peerAddr(host, 0))
	w.must(err)
	w.Cleanup(func() { p.Close() })
	w.must(p.SetDeadline(soon()))
	return p
}

func (w *wired) write1(c net.Conn, s string) {
	w.Helper()
	_, err := c.Write([]byte(s))
	w.must(err)
}

// arrives sends a connected socket a datagram of its peer, once the host has worked off what came
// before.
func (w *wired) arrives(c net.Conn, payload string) {
	w.Helper()
	w.answers()
	from := c.RemoteAddr().(*net.UDPAddr).AddrPort()
	to := c.LocalAddr().(*net.UDPAddr).AddrPort()
	w.deliver(packet(from.Addr().Unmap(), to.Addr().Unmap(), 17,
		datagram(from.Port(), to.Port(), payload), option{}))
}

// readsUntil reads until the payload comes, and lists the errors before it.
func (w *wired) readsUntil(c interface{ Read([]byte) (int, error) }, payload string) string {
	w.Helper()
	var all []string
	for buf := make([]byte, 64); len(all) < 5; {
		n, err := c.Read(buf)
		if err == nil && string(buf[:n]) == payload {
			return strings.Join(append(all, "data"), ", ")
		}
		all = append(all, errno(err))
	}
	w.Fatalf("%q: %v", payload, all)
	return ""
}

// dialTCP dials a port of the peer's, which sees the SYN, does what answer does, and then accepts.
// The handshake is over only if nothing has ended it before.
func (w *wired) dialTCP(peer netip.Addr, answer func(syn []byte)) string {
	w.Helper()
	to := netip.AddrPortFrom(peer, w.wirePort())
	result := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	go func() {
		c, err := w.DialContext(ctx, "tcp", to.String())
		if err == nil {
			c.Close()
		}
		result <- err
	}()
	syn := w.next("the SYN", is(6, to.Port()))
	answer(syn)
	w.answers() // the SYN-ACK may come by another way, and so before
	w.deliver(reply(syn, 0x12, "", 1))
	return errno(<-result)
}

// reply is a segment that answers one of the host's. seq is the peer's sequence number.
func reply(to []byte, flags byte, payload string, seq uint32) []byte {
	at := transportAt(to)
	h := to[at:]
	length := uint32(len(to) - at - int(h[12]>>4)*4)
	if h[13]&3 != 0 {
		length++
	}
	source, destination := to[12:16], to[16:20]
	if to[0]>>4 == 6 {
		source, destination = to[8:24], to[24:40]
	}
	host, _ := netip.AddrFromSlice(source)
	from, _ := netip.AddrFromSlice(destination)
	s := segment(binary.BigEndian.Uint16(h[2:]), binary.BigEndian.Uint16(h), seq,
		binary.BigEndian.Uint32(h[4:])+length, flags)
	if flags&2 != 0 { // with a maximum segment size of 1440
		s[12] = 0x60
		s = append(s, 2, 4, 1440>>8, 1440&0xff)
	}
	return packet(from, host, 6, append(s, payload...), option{})
}

// connectTCP is a connection to the peer, and a segment with data that the host has sent on it.
func (w *wired) connectTCP(peer netip.Addr) (c net.Conn, sent []byte) {
	w.Helper()
	to := netip.AddrPortFrom(peer, w.wirePort())
	dialled := make(chan net.Conn, 1)
	go func() {
		c, err := w.DialContext(context.Background(), "tcp", to.String())
		if err != nil {
			w.Error(err)
		}
		dialled <- c
	}()
	w.deliver(reply(w.next("the SYN", is(6, to.Port())), 0x12, "", 1))
	if c = <-dialled; c == nil {
		w.FailNow()
	}
	w.Cleanup(func() { c.Close() })
	w.must(c.SetDeadline(soon()))
	w.write1(c, "data")
	return c, w.next("the data", func(ip []byte) bool {
		return is(6, to.Port())(ip) && strings.HasSuffix(string(ip), "data")
	})
}

// nth is another address of a's subnet.
func nth(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] += byte(n)
	a, _ = netip.AddrFromSlice(b)
	return a
}

// tooBig is the message of a router that takes packets of so many bytes only.
func tooBig(about []byte, mtu uint32) []byte {
	if about[0]>>4 == 4 {
		return quoting(about, 3, 4, mtu)
	}
	return quoting(about, 2, 0, mtu)
}

// fragments describes the packets of the host's next datagram to the peer, as far as the network
// sees them: sizes, offsets and "don't fragment".
func (w *wired) fragments(v6 bool) string {
	w.Helper()
	var all []string
	ids := map[uint32]bool{}
	for more := true; more; {
		ip := w.next("a fragment", func(ip []byte) bool {
			return (ip[0]>>4 == 6) == v6 && (ip[0]>>4 == 4 && ip[9] == 17 ||
				ip[0]>>4 == 6 && (ip[6] == 17 || ip[6] == 44))
		})
		var offset int
		var flags string
		if v6 {
			more = false
			if ip[6] == 44 {
				field := binary.BigEndian.Uint16(ip[42:])
				offset, more = int(field&^7), field&1 != 0
				ids[binary.BigEndian.Uint32(ip[44:])] = true
			}
		} else {
			field := binary.BigEndian.Uint16(ip[6:])
			offset, more = int(field&0x1fff)*8, field&0x2000 != 0
			if field&0x4000 != 0 {
				flags = " DF"
			}
			if more || offset > 0 {
				ids[uint32(binary.BigEndian.Uint16(ip[4:]))] = true
			}
		}
		all = append(all, fmt.Sprintf("%d at %d%s", len(ip), offset, flags))
	}
	if len(ids) > 1 {
		all = append(all, "of different identifications")
	}
	return strings.Join(all, ", ")
}

// pathMTU has a router tell an MTU about a datagram of an unconnected socket, and of a connected
// one.
func (w *wired) pathMTU(v6 bool, i int, mtu uint32) {
	w.Helper()
	e := icmpError{v6: v6}
	name := fmt.Sprint(e, " MTU ", mtu)
	for j, connected := range []bool{false, true} {
		peer := nth(e.peer(), 1+2*i+j)
		var c udpConn
		var to *net.UDPAddr
		if connected {
			c = w.dialUDP(peer)
		} else {
			c, to = w.listenUDP(e.host()), peerAddr(peer, 9)
		}
		send := func(n int) error {
			_, _, err := c.WriteMsgUDP(make([]byte, n), nil, to)
			return err
		}
		w.must(send(1400))
		sent := w.next("the datagram", func(ip []byte) bool {
			p, _ := protocolOf(ip)
			return p == 17
		})
		w.deliver(tooBig(sent, mtu))
		w.answers()
		if connected {
			result := errno(send(1400))
			w.must(send(7))
			for _, ip := range w.before("the datagram of 7 bytes", func(ip []byte) bool {
				p, l4 := protocolOf(ip)
				return p == 17 && len(ip)-l4 == 8+7
			}) {
				result += fmt.Sprint(" ", len(ip))
			}
			w.Text(name+" connected", result)
		}
		for _, n := range []int{1400, 500, 1, 1252, 1232, 3000} {
			w.must(send(n))
			w.Text(fmt.Sprint(name, " ", connected, " ", n), w.fragments(v6))
		}
	}
}

// discovery does so for a socket with an option about path MTUs.
func (w *wired) discovery(v6 bool, d stack.PathMTUDiscovery) {
	w.Helper()
	e := icmpError{v6: v6}
	peer := nth(e.peer(), 40+int(d))
	name := fmt.Sprint(e, " discovery ", int(d))
	c := w.listenUDP(e.host())
	w.must(setDiscovery(c, d))
	send := func(n int) {
		w.Helper()
		_, err := c.WriteToUDP(make([]byte, n), peerAddr(peer, 9))
		result := errno(err)
		if err == nil {
			result += ": " + w.fragments(v6)
		}
		w.Text(fmt.Sprint(name, " ", n), result)
	}
	for _, n := range []int{1, 1400, 1452, 1472, 1473, 3000} {
		send(n)
	}
	_, err := c.WriteToUDP(make([]byte, 1400), peerAddr(peer, 9))
	w.must(err)
	w.deliver(tooBig(w.next("the datagram", is(17, 9)), 1300))
	w.answers()
	for _, n := range []int{1, 1252, 1272, 1273, 1400, 3000} {
		send(n)
	}
	con := w.dialUDP(peer)
	w.must(setDiscovery(con, d))
	w.write1(con, "x")
	w.deliver(tooBig(w.next("the datagram", is(17, port(con.RemoteAddr()))), 1300))
	w.arrives(con, "after")
	w.Text(name+" connected", w.readsUntil(con, "after"))
}

// writesAfter holds writes on a socket, to its peer if to is nil, behind an error of ICMP.
var writesAfter = []struct {
	name  string
	write func(c udpConn, to *net.UDPAddr) (int, error)
}{
	{"a datagram", func(c udpConn, to *net.UDPAddr) (int, error) {
		n, _, err := c.WriteMsgUDP(make([]byte, 1200), nil, to)
		return n, err
	}},
	{"a large one", func(c udpConn, to *net.UDPAddr) (int, error) {
		n, _, err := c.WriteMsgUDP(make([]byte, 1400), nil, to)
		return n, err
	}},
	{"Write", func(c udpConn, to *net.UDPAddr) (int, error) {
		if to != nil {
			return c.WriteTo(make([]byte, 1200), to)
		}
		return c.Write(make([]byte, 1200))
	}},
	{"a batch", func(c udpConn, to *net.UDPAddr) (int, error) {
		return writeBatch(c, messagesOf(to, 1200, 1201, 1202))
	}},
	{"a batch with large ones", func(c udpConn, to *net.UDPAddr) (int, error) {
		return writeBatch(c, messagesOf(to, 1200, 1400, 1201, 1401))
	}},
	{"segments", func(c udpConn, to *net.UDPAddr) (int, error) {
		n, _, err := c.WriteMsgUDP(make([]byte, 2500), segmentControl(1000), to)
		return n, err
	}},
	{"large segments", func(c udpConn, to *net.UDPAddr) (int, error) {
		n, _, err := c.WriteMsgUDP(make([]byte, 2800), segmentControl(1400), to)
		return n, err
	}},
}

// writesAfter lets an error of ICMP come about a datagram of 1400 bytes, and notes what a write
// behind it returns, and the next one, and the sizes of what is sent.
func (w *wired) writesAfter(e icmpError, peer netip.Addr, connected bool,
	d stack.PathMTUDiscovery, write func(udpConn, *net.UDPAddr) (int, error)) string {
	w.Helper()
	var c udpConn
	var to *net.UDPAddr
	if connected {
		c = w.dialUDP(peer)
	} else {
		c, to = w.listenUDP(e.host()), peerAddr(peer, w.wirePort())
	}
	defer c.Close()
	_, _, err := c.WriteMsgUDP(make([]byte, 1400), nil, to)
	w.must(err)
	sent := w.next("the datagram", func(ip []byte) bool {
		p, _ := protocolOf(ip)
		return p == 17
	})
	w.must(setDiscovery(c, d))
	w.deliver(quoting(sent, e.kind, e.code, e.value))
	w.answers()
	n, err := write(c, to)
	result := fmt.Sprint(n, " ", errno(err))
	for {
		_, _, err := c.WriteMsgUDP(make([]byte, 7), nil, to)
		result += ", " + errno(err)
		if err == nil {
			break
		}
	}
	for _, ip := range w.before("the datagram of 7 bytes", func(ip []byte) bool {
		p, l4 := protocolOf(ip)
		return p == 17 && len(ip)-l4 == 8+7
	}) {
		result += fmt.Sprint(" ", len(ip))
	}
	return result
}

// setDiscovery sets IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, or what stands for them.
func setDiscovery(c udpConn, d stack.PathMTUDiscovery) error {
	if c, ok := c.(*stack.UDPConn); ok {
		return c.SetPathMTUDiscovery(d)
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	var set [2]error
	err = raw.Control(func(fd uintptr) {
		set[0] = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, int(d))
		set[1] = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, int(d))
	})
	if set[0] != nil && set[1] != nil {
		return set[0]
	}
	return err
}

// writeBatch sends datagrams by one call.
func writeBatch(c udpConn, ms []stack.Message) (int, error) {
	if c, ok := c.(*stack.UDPConn); ok {
		return c.WriteBatch(ms, 0)
	}
	n, err := ipv4.NewPacketConn(c).WriteBatch(ms, 0)
	return max(n, 0), err
}

// TestICMPDuringDials: a stranger's ICMP, in any order with the answers of the host that is
// dialled, stops no dial for good; google/gvisor#13823 tells of an endpoint that waits for its own
// lock then. It needs an error that comes on the goroutine that sends: here none does.
func TestICMPDuringDials(t *testing.T) {
	w := wiredStack(t)
	const dialers, each = 8, 25
	var dials sync.WaitGroup
	stop := make(chan struct{})
	var told, connected atomic.Int32
	for i := range dialers {
		dials.Go(func() {
			for j := range each {
				peer := wirePeer4
				if j%2 == 1 {
					peer = wirePeer6
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				c, err := w.DialContext(ctx, "tcp", netip.AddrPortFrom(peer,
					uint16(10000+i*each+j)).String())
				cancel()
				switch {
				case err == nil:
					connected.Add(1)
					c.Close()
				case errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				default:
					told.Add(1)
				}
			}
		})
	}
	var peer sync.WaitGroup
	peer.Go(func() {
		for n := 0; ; n++ {
			w.mu.Lock()
			frames := w.frames
			w.frames = nil
			w.mu.Unlock()
			for _, f := range frames {
				ip := unpadded(f[14:])
				p, at := protocolOf(ip)
				if p != 6 || ip[at+13]&2 == 0 {
					continue
				}
				about := slices.Clone(ip)
				addSequence(about, n%3)
				e := icmpErrors[n%len(icmpErrors)]
				messages := [][]byte{quoting(about, e.kind, e.code, e.value),
					reply(ip, 0x12, "", 1), quoting(ip, e.kind, e.code, e.value)}
				if n%4 == 0 {
					messages = append(messages, reply(ip, 0x14, "", 1))
				}
				for i := range messages {
					w.deliver(messages[(i+n)%len(messages)])
				}
				n++
			}
			select {
			case <-w.more:
			case <-stop:
				return
			}
		}
	})
	dials.Wait()
	close(stop)
	peer.Wait()
	if told.Load() == 0 || connected.Load() == 0 {
		t.Errorf("%d dials failed and %d did not", told.Load(), connected.Load())
	}
}

func to(mac net.HardwareAddr) string {
	if mac[0]&1 == 0 {
		return "to the host"
	}
	return "to " + mac.String()
}

// summaries says what the host sends.
func (w *wired) summaries() string {
	w.Helper()
	var all []string
	for _, ip := range w.answers() {
		all = append(all, summary(ip))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// toGroup sends packets for the host in frames to a group.
func (w *wired) toGroup(mac net.HardwareAddr) {
	w.Helper()
	for _, v6 := range []bool{false, true} {
		e := icmpError{v6: v6}
		l, err := w.Listen("tcp", netip.AddrPortFrom(e.host(), 0).String())
		w.must(err)
		w.Cleanup(func() { l.Close() })
		open := w.listenUDP(e.host())
		echo := []byte{8, 0, 0, 0, 1, 2, 0, 3}
		ping := byte(1)
		if v6 {
			echo[0], ping = 128, 58
		}
		for _, p := range []struct {
			name     string
			protocol byte
			body     []byte
			o        option
		}{
			{"SYN to a listener", 6, segment(5, l.Addr().(*net.TCPAddr).AddrPort().Port(), 1, 0, 2),
				option{}},
			{"SYN to nobody", 6, segment(5, 9, 1, 0, 2), option{}},
			{"ACK to nobody", 6, segment(5, 9, 1, 1, 0x10), option{}},
			{"datagram to nobody", 17, datagram(5, 9, "x"), option{}},
			{"unknown protocol", 200, []byte("x"), option{}},
			{"echo request", ping, echo, option{}},
			{"datagram with options", 17, datagram(5, 9, "x"), option{v4options: []byte{1, 1, 1, 0},
				extensions: []byte{17, 0, 1, 4, 0, 0, 0, 0}, first: 60}},
			{"bad options", 17, datagram(5, 9, "x"), option{v4options: []byte{7, 2, 1, 1},
				extensions: []byte{17, 0, 0x80, 4, 0, 0, 0, 0}, first: 60}},
		} {
			if v6 {
				p.o.v4options = nil
			} else {
				p.o.extensions = nil
			}
			w.deliverTo(mac, packet(e.peer(), e.host(), p.protocol, p.body, p.o))
			w.Text(fmt.Sprint(e, " ", mac, " ", p.name), w.summaries())
		}
		w.deliverTo(mac, packet(e.peer(), e.host(), 17,
			datagram(5, port(open.LocalAddr()), "for all"), option{}))
		buf := make([]byte, 64)
		n, _, err := open.ReadFrom(buf)
		w.Text(fmt.Sprint(e, " ", mac, " datagram"), string(buf[:n])+" "+errno(err))
	}
}

// toSeveral sends packets to IP addresses of several hosts, in the frames of such and in frames to
// the host alone.
func (w *wired) toSeveral() {
	w.Helper()
	l, err := w.Listen("tcp", ":0")
	w.must(err)
	w.Cleanup(func() { l.Close() })
	listens := l.Addr().(*net.TCPAddr).AddrPort().Port()
	for _, d := range []struct {
		addr string
		mac  net.HardwareAddr
	}{
		{"10.77.0.255", everybody}, {"10.77.0.0", everybody}, {"255.255.255.255", everybody},
		{"224.0.0.1", net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}},
		{"224.0.0.9", net.HardwareAddr{1, 0, 0x5e, 0, 0, 9}},
		{"ff02::1", net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}},
		{"ff02::9", net.HardwareAddr{0x33, 0x33, 0, 0, 0, 9}},
	} {
		addr := netip.MustParseAddr(d.addr)
		from, echo, ping := wirePeer4, []byte{8, 0, 0, 0, 1, 2, 0, 3}, byte(1)
		if addr.Is6() {
			from, echo[0], ping = wirePeer6, 128, 58
		}
		stamp := append([]byte{13, 0, 0, 0, 1, 2, 0, 3}, make([]byte, 12)...)
		for _, mac := range []net.HardwareAddr{d.mac, w.mac} {
			for _, p := range []struct {
				name     string
				protocol byte
				body     []byte
			}{
				{"echo request", ping, echo},
				{"timestamp request", 1, stamp},
				{"SYN to a listener", 6, segment(5, listens, 1, 0, 2)},
				{"SYN to nobody", 6, segment(5, 9, 1, 0, 2)},
				{"ACK to nobody", 6, segment(5, 9, 1, 1, 0x10)},
				{"datagram to nobody", 17, datagram(5, 9, "x")},
				{"unknown protocol", 200, []byte("x")},
			} {
				if addr.Is6() && p.name == "timestamp request" {
					continue
				}
				w.deliverTo(mac, packet(from, addr, p.protocol, p.body, option{}))
				w.Text(fmt.Sprint(d.addr, " ", to(mac) == to(w.mac), " ", p.name), w.summaries())
			}
		}
	}
}

// wrongParameters are IPv6 packets that are answered with "parameter problem".
var wrongParameters = []struct {
	name       string
	protocol   byte
	body       []byte
	extensions []byte
	first      byte
}{
	{"next header unknown", 200, []byte("12345678"), nil, 0},
	{"next header unknown behind an extension", 0, []byte("12345678"),
		[]byte{200, 0, 1, 4, 0, 0, 0, 0}, 60},
	{"next header unknown behind two", 0, []byte("12345678"),
		[]byte{60, 0, 1, 4, 0, 0, 0, 0, 200, 0, 1, 4, 0, 0, 0, 0}, 0},
	{"no next header", 59, []byte("12345678"), nil, 0},
	{"authentication", 51, []byte("12345678"), nil, 0},
	{"next header unknown behind a fragment", 0, []byte("12345678"),
		[]byte{200, 0, 0, 0, 0, 0, 0, 9}, 44},
	{"next header unknown behind a routing header", 0, []byte("12345678"),
		[]byte{200, 0, 99, 0, 0, 0, 0, 0}, 43},
	{"hop-by-hop options unknown", 17, datagram(5, 9, "x"),
		[]byte{17, 0, 0x80, 4, 0, 0, 0, 0}, 0},
	{"hop-by-hop options unknown behind padding", 17, datagram(5, 9, "x"),
		[]byte{17, 0, 1, 0, 0x9e, 2, 0, 0}, 0},
	{"hop-by-hop options unknown, to be skipped and refused", 17, datagram(5, 9, "x"),
		[]byte{17, 1, 0x1e, 1, 0, 1, 1, 0, 0xde, 4, 0, 0, 0, 0, 1, 0}, 0},
	{"destination options unknown", 17, datagram(5, 9, "x"),
		[]byte{17, 0, 0x80, 4, 0, 0, 0, 0}, 60},
	{"destination options unknown behind padding", 17, datagram(5, 9, "x"),
		[]byte{17, 0, 0, 0, 0x9e, 2, 0, 0}, 60},
	{"destination options unknown in the second header", 17, datagram(5, 9, "x"),
		[]byte{60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 0, 0xc9, 2, 0, 0}, 0},
	{"destination options to be discarded", 17, datagram(5, 9, "x"),
		[]byte{17, 0, 0x40, 4, 0, 0, 0, 0}, 60},
	{"hop-by-hop options in the second place", 17, datagram(5, 9, "x"),
		[]byte{0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0}, 60},
	{"routing type unknown", 17, datagram(5, 9, "x"),
		[]byte{17, 0, 99, 1, 0, 0, 0, 0}, 43},
	{"routing type unknown behind an extension", 17, datagram(5, 9, "x"),
		[]byte{43, 0, 1, 4, 0, 0, 0, 0, 17, 0, 99, 1, 0, 0, 0, 0}, 60},
	{"fragment of a length that is no multiple of 8", 17, datagram(5, 9, "12345"),
		[]byte{17, 0, 0, 1, 0, 0, 0, 1}, 44},
	{"fragment beyond the largest packet", 0, []byte("12345678"),
		[]byte{17, 0, 0xff, 0xf8, 0, 0, 0, 2}, 44},
	{"fragment beyond the largest packet, behind an extension", 0, []byte("12345678"),
		[]byte{44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0xff, 0xf8, 0, 0, 0, 3}, 60},
}
