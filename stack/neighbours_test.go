package stack_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// macMoved is where an address is after a move.
var macMoved = []byte{2, 0, 0, 0, 0, 0xc}

// asked is whose hardware address a frame asks for, if it is a question of ARP or neighbour
// discovery.
func asked(f []byte) (a netip.Addr, ok bool) {
	switch {
	case len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 1 &&
		!bytes.Equal(f[28:32], f[38:42]):
		return netip.AddrFromSlice(f[38:42])
	case len(f) >= 78 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 58 && f[54] == 135:
		return netip.AddrFromSlice(f[62:78])
	}
	return a, false
}

// unicast is a frame for us alone.
func unicast(f []byte) []byte {
	f = bytes.Clone(f)
	copy(f, macOurs)
	return f
}

// answerFrom answers such a question.
func answerFrom(mac []byte, a netip.Addr) []byte {
	if a.Is4() {
		return unicast(arpFrame(2, mac, a.String(), macOurs, "192.0.2.1"))
	}
	return unicast(icmp6Frame(mac, a.String(), "2001:db8::1", []byte{136, 0, 0, 0, 0x60, 0, 0, 0},
		a.AsSlice(), []byte{2, 1}, mac))
}

// advertisement of a, with flags: 0x40 solicited, 0x20 override.
func advertisement(mac []byte, a string, flags byte) []byte {
	return icmp6Frame(mac, a, "ff02::1", []byte{136, 0, 0, 0, flags, 0, 0, 0},
		netip.MustParseAddr(a).AsSlice(), []byte{2, 1}, mac)
}

// sentTo is the hardware address that the last frame to port went to; nil: there was none.
func (st *station) sentTo(port uint16) (mac []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, f := range st.frames {
		if p, ok := udpPort(f); ok && p == port {
			mac = f[:6]
		}
	}
	return mac
}

// udpPort is the port that a frame's datagram is for.
func udpPort(f []byte) (uint16, bool) {
	switch {
	case len(f) >= 42 && f[12] == 8 && f[13] == 0 && f[23] == 17:
		return binary.BigEndian.Uint16(f[36:]), true
	case len(f) >= 62 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 17:
		return binary.BigEndian.Uint16(f[56:]), true
	}
	return 0, false
}

// onHub is onStation with a station that sees frames to every hardware address.
func onHub(t *testing.T, cfg stack.Config) (*stack.Stack, *station) {
	t.Helper()
	netpair.CheckLeaks(t)
	st := &station{}
	near, far := netpair.NewPorts(netpair.Faults{Tap: func(end int, f []byte) bool {
		if end == 0 {
			st.take(bytes.Clone(f))
		}
		return end == 0
	}})
	st.port = far
	t.Cleanup(far.Close)
	s, err := stack.New(near, cfg)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, st
}

// TestNeighbourMoves: a neighbour is at another hardware address, and the next datagram goes there,
// when and as Linux takes it for moved (net/ipv4/arp.c arp_process, net/ipv6/ndisc.c).
func TestNeighbourMoves(t *testing.T) {
	const v4, v6 = "192.0.2.9", "2001:db8::9"
	zero := make([]byte, 6)
	for _, c := range []struct {
		name  string
		addr  string
		frame []byte
		// whether the address is taken for moved, less and more than the locktime of 1 s after
		// the entry changed last
		early, late bool
	}{
		{"gratuitous request", v4, garpOf(macMoved, v4), true, true},
		{"gratuitous reply", v4, arpFrame(2, macMoved, v4, macMoved, v4), true, true},
		{"gratuitous reply with another target", v4, arpFrame(2, macMoved, v4, zero, v4),
			false, true},
		{"reply", v4, answerFrom(macMoved, netip.MustParseAddr(v4)), false, true},
		{"broadcast reply", v4, arpFrame(2, macMoved, v4, macOurs, "192.0.2.1"), false, true},
		{"request for a third host", v4, arpFrame(1, macMoved, v4, zero, "192.0.2.77"),
			false, true},
		{"request for us", v4, arpFrame(1, macMoved, v4, zero, "192.0.2.1"), true, true},
		{"probe", v4, arpFrame(1, macMoved, "0.0.0.0", zero, v4), false, false},
		{"somebody else's announcement", v4, garpOf(macMoved, "192.0.2.10"), false, false},
		{"request for a group", v4, arpFrame(1, macMoved, v4, zero, "224.0.0.1"), false, false},
		{"another operation", v4, arpFrame(3, macMoved, v4, zero, v4), false, false},
		{"cut short", v4, garpOf(macMoved, v4)[:41], false, false},

		{"unsolicited advertisement", v6, advertisement(macMoved, v6, 0x20), true, true},
		{"solicited advertisement", v6, answerFrom(macMoved, netip.MustParseAddr(v6)), true, true},
		{"solicited advertisement to all", v6, advertisement(macMoved, v6, 0x60), false, false},
		{"advertisement that does not override", v6, advertisement(macMoved, v6, 0), false, false},
		{"somebody else's advertisement", v6, advertisement(macMoved, "2001:db8::a", 0x20),
			false, false},
		{"solicitation for us", v6, icmp6Frame(macMoved, v6, "ff02::1:ff00:1",
			[]byte{135, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8::1").AsSlice(),
			[]byte{1, 1}, macMoved), true, true},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/late=%v", c.name, late), func(t *testing.T) {
				var now atomic.Int64 // in seconds, as the test has it
				now.Store(1e9)
				cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
					NoAnnounce: true},
					Clock: clocktest.Showing(func() time.Time {
						return time.Unix(now.Load(), 0)
					}),
					Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"),
						netip.MustParsePrefix("2001:db8::1/64")}}
				s, st := onHub(t, cfg)
				st.onFrame(func(f []byte) {
					if a, ok := asked(f); ok && a.String() == c.addr {
						st.send(answerFrom(macOther, a))
					}
				})
				out, err := s.ListenUDP("udp", nil)
				must(t, err)
				port := uint16(1000)
				to := func() []byte { // by way of a datagram
					port++
					must(t, errOf(out.WriteToUDPAddrPort([]byte("x"),
						netip.AddrPortFrom(netip.MustParseAddr(c.addr), port))))
					eventually(t, "the datagram", func() bool { return st.sentTo(port) != nil })
					return st.sentTo(port)
				}
				for range 3 { // the last ones by the template of their headers
					if mac := to(); !bytes.Equal(mac, macOther) {
						t.Fatalf("sent to %v before", net.HardwareAddr(mac))
					}
				}
				if late {
					now.Add(2)
				}
				before := s.Stats().HardwareAddrConflicts
				st.send(c.frame)
				st.send(garpOf(macOurs, "192.0.2.7")) // the last frame: the one before was seen
				eventually(t, "the last frame",
					func() bool { return s.Stats().HardwareAddrConflicts > before })
				want, moves := macOther, uint64(0)
				if late && c.late || !late && c.early {
					want, moves = macMoved, 1
				}
				if mac := to(); !bytes.Equal(mac, want) {
					t.Errorf("sent to %v, want %v", net.HardwareAddr(mac), net.HardwareAddr(want))
				}
				if n := s.Stats().NeighbourMoves; n != moves {
					t.Errorf("%d moves counted, want %d", n, moves)
				}
			})
		}
	}
}

func errOf(_ int, err error) error { return err }

// TestSenderIsNoNeighbour: no entry of the neighbour table is made for the sender of a probe, our
// own addresses, groups and broadcast addresses.
func TestSenderIsNoNeighbour(t *testing.T) {
	zero := make([]byte, 6)
	for _, sender := range []string{"0.0.0.0", "192.0.2.1", "192.0.2.255", "255.255.255.255",
		"224.0.0.1", "127.0.0.1"} {
		for _, target := range []string{"192.0.2.1", sender} {
			for op := byte(1); op <= 2; op++ {
				checkNoNeighbour(t, arpFrame(op, macOther, sender, zero, target))
			}
		}
	}
	for _, a := range []string{"2001:db8::1", "::1"} {
		checkNoNeighbour(t, icmp6Frame(macOther, a, "ff02::1:ff00:1",
			[]byte{135, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8::1").AsSlice(),
			[]byte{1, 1}, macOther))
		checkNoNeighbour(t, advertisement(macOther, a, 0x20))
	}
}

func checkNoNeighbour(t *testing.T, frame []byte) {
	t.Helper()
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
		NoAnnounce: true},
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"),
			netip.MustParsePrefix("2001:db8::1/64")}})
	st.send(frame)
	st.send(garpOf(macOurs, "192.0.2.7"))
	eventually(t, "the last frame", func() bool { return s.Stats().HardwareAddrConflicts >= 1 })
	for _, p := range []int{0x800, 0x86dd} {
		entries, _ := s.Netstack().Neighbors(1, tcpip.NetworkProtocolNumber(p))
		if len(entries) != 0 {
			t.Errorf("%x: entries %+v", frame, entries)
		}
	}
}

// TestBroadcastNotAnswered: nobody has a broadcast address.
func TestBroadcastNotAnswered(t *testing.T) {
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
		NoAnnounce: true},
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	for _, a := range []string{"192.0.2.255", "255.255.255.255", "192.0.2.1"} {
		st.send(arpFrame(1, macOther, "192.0.2.9", make([]byte, 6), a))
	}
	replies := func() int {
		return st.count(nil, func(f []byte) bool { return f[12] == 8 && f[13] == 6 && f[21] == 2 })
	}
	eventually(t, "the answer", func() bool { return replies() > 0 })
	if n := replies(); n != 1 {
		t.Errorf("%d answers, want the one for 192.0.2.1", n)
	}
	s.Close()
}

// manyNeighbours are as many hosts as a test asks for at once. Netstack's queue has room for 64.
const manyNeighbours = 300

// TestManyUnresolvedNeighbours: as on Linux what is sent to hosts that are not resolved waits for
// each, however many they are.
func TestManyUnresolvedNeighbours(t *testing.T) {
	host := func(v6 bool, i int) netip.Addr {
		if v6 {
			a := netip.MustParseAddr("2001:db8::1:0").As16()
			binary.BigEndian.PutUint16(a[14:], uint16(i+1))
			return netip.AddrFrom16(a)
		}
		return netip.AddrFrom4([4]byte{10, 9, byte(1 + i/200), byte(1 + i%200)})
	}
	datagram := func(f []byte) bool { p, ok := udpPort(f); return ok && p == 161 }
	syn := func(f []byte) bool {
		return f[12] == 8 && f[23] == 6 && f[47] == 2 || f[12] == 0x86 && f[20] == 6 && f[67] == 2
	}
	writeTo := func(t *testing.T, s *stack.Stack, v6 bool) {
		c, err := s.ListenUDP("udp", nil)
		must(t, err)
		for i := range manyNeighbours {
			must(t, errOf(c.WriteToUDPAddrPort([]byte("get"),
				netip.AddrPortFrom(host(v6, i), 161))))
		}
	}
	writeBatch := func(t *testing.T, s *stack.Stack, v6 bool) {
		c, err := s.ListenUDP("udp", nil)
		must(t, err)
		var ms []stack.Message
		for i := range manyNeighbours {
			ms = append(ms, stack.Message{Buffers: [][]byte{[]byte("get")}, Addr: net.
				UDPAddrFromAddrPort(netip.AddrPortFrom(host(v6, i), 161))})
		}
		for len(ms) > 0 {
			n, err := c.WriteBatch(ms, 0)
			must(t, err)
			ms = ms[n:]
		}
	}
	dial := func(t *testing.T, s *stack.Stack, v6 bool) {
		var dials sync.WaitGroup
		t.Cleanup(func() { s.Close(); dials.Wait() })
		for i := range manyNeighbours {
			dials.Go(func() {
				_, err := s.Dial("tcp", netip.AddrPortFrom(host(v6, i), 80).String())
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("dial %v: %v", host(v6, i), err)
				}
			})
		}
	}
	for _, c := range []struct {
		name string
		send func(*testing.T, *stack.Stack, bool)
		sent func([]byte) bool
	}{{"WriteTo", writeTo, datagram}, {"WriteBatch", writeBatch, datagram}, {"Dial", dial, syn}} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", c.name, v6), func(t *testing.T) {
				s, st := onStation(t,
					stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
						NoAnnounce: true},
						Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/16"),
							netip.MustParsePrefix("2001:db8::1/64")}})
				var mu sync.Mutex
				var questions []netip.Addr
				all := false
				st.onFrame(func(f []byte) { // nobody answers until all have been asked
					a, ok := asked(f)
					if !ok {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					questions = append(questions, a)
					if all = all || len(questions) >= manyNeighbours; !all {
						return
					}
					for _, a := range questions {
						st.send(answerFrom(macOther, a))
					}
					questions = nil
				})
				c.send(t, s, v6)
				to, size := 30, 4 // of the destination in a frame
				if v6 {
					to, size = 38, 16
				}
				eventually(t, "all of it on the cable", func() bool {
					hosts := map[string]bool{}
					st.count(nil, func(f []byte) bool {
						if c.sent(f) {
							hosts[string(f[to:to+size])] = true
						}
						return false
					})
					return len(hosts) == manyNeighbours
				})
				if n := s.Stats().NeighbourDrops + s.Stats().NeighbourOverflows; n != 0 {
					t.Errorf("%d packets dropped", n)
				}
			})
		}
	}
}

// TestUnresolvedQueue: what waits for one neighbour is bounded in bytes, the oldest gives way, and
// it says so. The packets for another neighbour are left alone.
func TestUnresolvedQueue(t *testing.T) {
	var log logged
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
		NoAnnounce: true},
		Logger: log.logger(), Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	c, err := s.ListenUDP("udp", nil)
	must(t, err)
	const many = 1000
	write := func(host string, port int) {
		must(t, errOf(c.WriteToUDPAddrPort(make([]byte, 1000),
			netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port)))))
	}
	write("192.0.2.8", 9)
	for i := range many {
		write("192.0.2.9", 10000+i)
	}
	drops := s.Stats().NeighbourDrops
	if drops == 0 || drops >= many || log.lines("packets are dropped") != 1 {
		t.Fatalf("%d of %d dropped, log:\n%s", drops, many, &log)
	}
	// Linux keeps 212992 bytes of packets with their overhead.
	if kept := many - drops; kept*1000 > 212992 || kept*1000 < 212992/4 {
		t.Errorf("%d datagrams of 1000 bytes kept", kept)
	}
	st.onFrame(func(f []byte) {
		if a, ok := asked(f); ok {
			st.send(answerFrom(macOther, a))
		}
	})
	st.send(answerFrom(macOther, netip.MustParseAddr("192.0.2.9")))
	st.send(answerFrom(macOther, netip.MustParseAddr("192.0.2.8")))
	eventually(t, "the newest and the other neighbour's", func() bool {
		return st.sentTo(9) != nil && st.sentTo(10000+many-1) != nil
	})
	for i := range many {
		if sent := st.sentTo(uint16(10000+i)) != nil; sent != (i >= int(drops)) {
			t.Fatalf("datagram %d sent: %v; %d dropped", i, sent, drops)
		}
	}
}

// TestAbsentNeighbours: dials of hosts that are not there fail as on Linux, after three questions a
// second apart, and in the same time however many they are.
func TestAbsentNeighbours(t *testing.T) {
	v := newVirtualTime(t)
	cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/16"),
			netip.MustParsePrefix("2001:db8::1/64")}}
	v.option(&cfg)
	s, _ := onStation(t, cfg)
	start := v.Clock.Clock().Now()
	var dials sync.WaitGroup
	for i := range manyNeighbours {
		to := fmt.Sprintf("10.9.%d.%d:80", 1+i/200, 1+i%200)
		if i%2 == 1 {
			to = fmt.Sprintf("[2001:db8::1:%x]:80", i)
		}
		dials.Go(func() {
			_, err := s.Dial("tcp", to)
			took := v.Clock.Clock().Since(start)
			if !errors.Is(err, syscall.EHOSTUNREACH) || took < 3*time.Second ||
				took > 4*time.Second {
				t.Errorf("dial %s: %v after %v", to, err, took)
			}
		})
	}
	dials.Wait()
}

// synFrame makes a client's SYN to port 80 of address to.
func synFrame(from, to netip.Addr) []byte {
	return tcpFrame(from, to, header.TCPFields{SrcPort: 4000, DstPort: 80, SeqNum: 1,
		Flags: header.TCPFlagSyn})
}

// tcpFrame makes a segment without data.
func tcpFrame(from, to netip.Addr, fields header.TCPFields) []byte {
	fields.WindowSize, fields.DataOffset = 65535, header.TCPMinimumSize
	tcp := make(header.TCP, header.TCPMinimumSize)
	tcp.Encode(&fields)
	src, dst := tcpip.AddrFromSlice(from.AsSlice()), tcpip.AddrFromSlice(to.AsSlice())
	tcp.SetChecksum(^tcp.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber,
		src, dst, uint16(len(tcp)))))
	ip, kind := make([]byte, header.IPv4MinimumSize), []byte{8, 0}
	if to.Is4() {
		h := header.IPv4(ip)
		h.Encode(&header.IPv4Fields{TotalLength: uint16(len(ip) + len(tcp)), TTL: 64,
			Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: dst})
		h.SetChecksum(^h.CalculateChecksum())
	} else {
		ip, kind = make([]byte, header.IPv6MinimumSize), []byte{0x86, 0xdd}
		header.IPv6(ip).Encode(&header.IPv6Fields{PayloadLength: uint16(len(tcp)), HopLimit: 64,
			TransportProtocol: header.TCPProtocolNumber, SrcAddr: src, DstAddr: dst})
	}
	return slices.Concat(macOurs, macOther, kind, ip, tcp)
}

// TestHandshakeWithoutNeighbour: a client's hardware address is not answered for while a handshake
// asks for it, three seconds. The SYN-ACK comes once it is.
func TestHandshakeWithoutNeighbour(t *testing.T) {
	for _, addrs := range [][2]string{{"192.0.2.9", "192.0.2.1"}, {"2001:db8::9", "2001:db8::1"}} {
		t.Run(addrs[0], func(t *testing.T) {
			client, server := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])
			v := newVirtualTime(t)
			cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
				NoAnnounce: true}, Addresses: []netip.Prefix{
				netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}}
			v.option(&cfg)
			s, st := onStation(t, cfg)
			ln, err := s.Listen("tcp", ":80")
			must(t, err)
			defer ln.Close()
			st.send(synFrame(client, server))
			v.sleep(t, 6500*time.Millisecond) // netstack repeats it after 1, 3 and 7 s
			asks := st.count(nil, func(f []byte) bool { _, ok := asked(f); return ok })
			if asks < 3 {
				t.Fatalf("%d questions", asks)
			}
			st.onFrame(func(f []byte) {
				if a, ok := asked(f); ok && a == client {
					st.send(answerFrom(macOther, a))
				}
			})
			v.sleep(t, 10*time.Second)
			if n := st.count(macOther, func(f []byte) bool {
				at := 14 + header.IPv4MinimumSize
				if !server.Is4() {
					at = 14 + header.IPv6MinimumSize
				}
				return len(f) > at+13 && f[at+13] == byte(header.TCPFlagSyn|header.TCPFlagAck)
			}); n == 0 {
				t.Error("no SYN-ACK")
			}
		})
	}
}

// TestOvertakenAnnouncement: announcements overtake each other during a handshake. Its SYN-ACK does
// not confirm the hardware address announced last, which nobody has: the neighbour is asked there.
// Linux asks 5 s after the first packet to it.
func TestOvertakenAnnouncement(t *testing.T) {
	const v4, v6 = "192.0.2.9", "2001:db8::9"
	for _, c := range []struct {
		ours, server string
		announcement []byte
	}{
		{"192.0.2.1", v4, garpOf(macMoved, v4)},
		{"2001:db8::1", v6, advertisement(macMoved, v6, 0x20)},
	} {
		t.Run(c.server, func(t *testing.T) {
			v := newVirtualTime(t)
			cfg := stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
				NoAnnounce: true}, Addresses: []netip.Prefix{
				netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}}
			v.option(&cfg)
			s, st := onHub(t, cfg)
			ours, server := netip.MustParseAddr(c.ours), netip.MustParseAddr(c.server)
			st.onFrame(func(f []byte) {
				switch of, ok := asked(f); {
				case ok && of == server && !bytes.Equal(f[:6], macMoved):
					st.send(answerFrom(macOther, of))
				case bytes.Equal(f[:6], macOther):
					if syn := tcpOf(f); syn != nil && syn.Flags() == header.TCPFlagSyn {
						st.send(c.announcement)
						st.send(tcpFrame(server, ours, header.TCPFields{SrcPort: 80,
							DstPort: syn.SourcePort(), AckNum: syn.SequenceNumber() + 1,
							Flags: header.TCPFlagSyn | header.TCPFlagAck}))
					}
				}
			})
			out, err := s.ListenUDP("udp", nil)
			must(t, err)
			defer out.Close()
			must(t, errOf(out.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(server, 9))))
			v.sleep(t, time.Second) // what waits for the neighbour confirms nothing
			conn, err := s.DialContext(t.Context(), "tcp",
				netip.AddrPortFrom(server, 80).String())
			must(t, err)
			defer conn.Close()
			must(t, errOf(conn.Write([]byte("x"))))
			v.sleep(t, 12*time.Second) // netstack keeps to an address for 15 s at least
			if st.count(macMoved, func(f []byte) bool { _, ok := asked(f); return ok }) == 0 {
				t.Error("no question to the address")
			}
			v.sleep(t, 20*time.Second)
			if st.count(macOther, func(f []byte) bool {
				tcp := tcpOf(f)
				return tcp != nil && len(tcp.Payload()) > 0
			}) == 0 {
				t.Error("no data to the neighbour")
			}
		})
	}
}

// tcpOf returns the TCP segment of a frame without IP options; nil: there is none.
func tcpOf(f []byte) header.TCP {
	at, kind := 14+header.IPv4MinimumSize, 23
	if len(f) > 12 && f[12] == 0x86 {
		at, kind = 14+header.IPv6MinimumSize, 20
	}
	if len(f) < at+header.TCPMinimumSize || f[kind] != byte(header.TCPProtocolNumber) {
		return nil
	}
	return f[at:]
}

// TestGroupFrameDrops: a SYN to all hosts is dropped and counted, not answered.
func TestGroupFrameDrops(t *testing.T) {
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1,
		NoAnnounce: true},
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	st.send(slices.Concat(
		[]byte{255, 255, 255, 255, 255, 255}, macOther, []byte{8, 0},
		[]byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0xb5, 0xc7, 192, 0, 2, 9, 192, 0, 2, 255},
		[]byte{0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0xfa, 0x4f, 0, 0}))
	eventually(t, "a drop", func() bool { return s.Stats().GroupFrameDrops == 1 })
	if n := s.Stats().TCPResetsSent; n != 0 {
		t.Errorf("%d resets", n)
	}
}
