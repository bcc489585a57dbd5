package stack_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// manyAddresses gives the server two more IPv4 addresses, one of them of another subnet, and one
// more IPv6 address.
var manyAddresses = netpair.Server(func(c *stack.Config) {
	c.Addresses = append(c.Addresses, netip.MustParsePrefix("192.0.2.7/24"),
		netip.MustParsePrefix("198.51.100.1/24"),
		netip.MustParsePrefix("2001:db8::7/64"))
})

// viaServer routes everything through the server.
func viaServer(server bool, c *stack.Config) {
	if !server {
		c.Gateways = []netip.Addr{netpair.ServerIP4, netpair.ServerIP6}
	}
}

// TestUDPAnswersFromWhereItWasAsked sends to every address of the server, in turn from one socket,
// and requires each answer to come from the address that was used.
func TestUDPAnswersFromWhereItWasAsked(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, manyAddresses, viaServer)
	linkLocal := func(s *stack.Stack) netip.Addr {
		for _, p := range s.Addrs() {
			if p.Addr().IsLinkLocalUnicast() {
				return p.Addr()
			}
		}
		t.Fatal("no link-local address")
		return netip.Addr{}
	}
	for _, c := range []struct {
		network string
		asked   []netip.Addr
	}{
		{"udp4", []netip.Addr{netpair.ServerIP4, netip.MustParseAddr("192.0.2.7"),
			netip.MustParseAddr("198.51.100.1")}},
		{"udp6", []netip.Addr{netpair.ServerIP6, netip.MustParseAddr("2001:db8::7"),
			linkLocal(server).WithZone(client.Name())}},
	} {
		p, err := server.ListenUDP("udp", nil)
		must(t, err)
		go echo(p)
		q, err := client.ListenUDP(c.network, nil)
		must(t, err)
		must(t, q.SetDeadline(time.Now().Add(hangs)))
		for range 3 {
			for _, a := range c.asked {
				to := netip.AddrPortFrom(a, uint16(p.LocalAddr().(*net.UDPAddr).Port))
				_, err := q.WriteToUDPAddrPort([]byte("?"), to)
				must(t, err)
				_, from, err := q.ReadFromUDPAddrPort(make([]byte, 8))
				must(t, err)
				if from != to {
					t.Errorf("asked %v, answer came from %v", to, from)
				}
			}
		}
		p.Close()
		q.Close()
	}
}

// echo answers until its socket is closed.
func echo(p net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		p.WriteTo(buf[:n], from)
	}
}

// TestUDPControl reads destinations from control messages and chooses the source with them.
func TestUDPControl(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{}, manyAddresses)
	p, err := server.ListenUDP("udp", nil)
	must(t, err)
	q, err := client.ListenUDP("udp", nil)
	must(t, err)
	must(t, q.SetDeadline(time.Now().Add(hangs)))
	must(t, p.SetDeadline(time.Now().Add(hangs)))
	must(t, p.SetControl(true))
	oob := make([]byte, 64)
	for _, asked := range []string{"192.0.2.7", "2001:db8::7"} {
		a := netip.MustParseAddr(asked)
		to := netip.AddrPortFrom(a, uint16(p.LocalAddr().(*net.UDPAddr).Port))
		_, err := q.WriteToUDPAddrPort([]byte("?"), to)
		must(t, err)
		_, oobn, flags, from, err := p.ReadMsgUDPAddrPort(make([]byte, 8), oob)
		must(t, err)
		if flags != 0 || !bytes.Contains(oob[:oobn], a.AsSlice()) {
			t.Errorf("control message % x (flags %#x) has no %v", oob[:oobn], flags, a)
		}
		if _, _, err = p.WriteMsgUDPAddrPort([]byte("!"), oob[:oobn], from); err != nil {
			t.Fatal(err)
		}
		_, back, err := q.ReadFromUDPAddrPort(make([]byte, 8))
		must(t, err)
		if back.Addr().Unmap() != a {
			t.Errorf("answer from %v, want %v", back.Addr(), a)
		}
	}
}

// TestUDPControlErrors: a source address that is not ours is ENETUNREACH, a torn message EINVAL,
// and a buffer that is too short is reported.
func TestUDPControlErrors(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	p, err := server.ListenUDP("udp4", &net.UDPAddr{IP: netpair.ServerIP4.AsSlice()})
	must(t, err)
	must(t, p.SetControl(true))
	must(t, p.SetDeadline(time.Now().Add(hangs)))
	q, err := client.DialUDP("udp", nil, p.LocalAddr().(*net.UDPAddr))
	must(t, err)
	q.Write([]byte("?"))
	q.Write([]byte("?"))
	oob := make([]byte, 64)
	_, oobn, _, from, err := p.ReadMsgUDP(make([]byte, 8), oob)
	must(t, err)
	_, short, flags, _, err := p.ReadMsgUDP(make([]byte, 8), oob[:4:4])
	must(t, err)
	if short != 0 || flags&syscall.MSG_CTRUNC == 0 {
		t.Errorf("a short control buffer: %d bytes, flags %#x, want MSG_CTRUNC", short, flags)
	}
	stranger := bytes.ReplaceAll(oob[:oobn], netpair.ServerIP4.AsSlice(), []byte{203, 0, 113, 7})
	for want, oob := range map[syscall.Errno][]byte{
		syscall.ENETUNREACH: stranger,
		syscall.EINVAL:      append([]byte{0xff}, oob[1:oobn]...),
	} {
		if _, _, err := p.WriteMsgUDP([]byte("!"), oob, from); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if _, _, err := p.WriteMsgUDP([]byte("!"), []byte{1, 2, 3}, from); err != nil {
		t.Errorf("padding: %v", err) // Linux ignores less than a header too
	}
}

func TestUDPBatch(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	p, err := server.ListenUDP("udp4", &net.UDPAddr{IP: netpair.ServerIP4.AsSlice()})
	must(t, err)
	must(t, p.SetDeadline(time.Now().Add(hangs)))
	q, err := client.ListenUDP("udp4", nil)
	must(t, err)
	const n = 20
	var out []stack.Message
	for i := range n {
		parts := [][]byte{[]byte(fmt.Sprint(i))}
		if i%2 == 1 {
			parts = append(parts, []byte(" odd"))
		}
		out = append(out, stack.Message{Buffers: parts, Addr: p.LocalAddr()})
	}
	sent, err := q.WriteBatch(out, 0)
	must(t, err)
	if sent != n {
		t.Errorf("sent %d of %d", sent, n)
	}
	got := map[string]bool{}
	for len(got) < n {
		in := make([]stack.Message, 64)
		for i := range in {
			in[i].Buffers = [][]byte{make([]byte, 16)}
		}
		k, err := p.ReadBatch(in, 0)
		must(t, err)
		for _, m := range in[:k] {
			got[string(m.Buffers[0][:m.N])] = true
			if port(m.Addr) != port(q.LocalAddr()) {
				t.Errorf("from %v, want %v", m.Addr, q.LocalAddr())
			}
		}
	}
	if !got["0"] || !got["1 odd"] || !got["19 odd"] {
		t.Errorf("got %v", got)
	}
	must(t, p.SetReadDeadline(time.Unix(1, 0)))
	if k, err := p.ReadBatch(make([]stack.Message, 1), 0); k != 0 || err == nil {
		t.Errorf("past the deadline: %d, %v", k, err)
	}
	if k, err := p.ReadBatch(nil, 0); k != 0 || err != nil {
		t.Errorf("no messages: %d, %v", k, err)
	}
	bad := []stack.Message{out[0], {Buffers: [][]byte{[]byte("x")}, Addr: &net.TCPAddr{}}, out[1]}
	if k, err := q.WriteBatch(bad, 0); k != 1 || err != nil {
		t.Errorf("a bad second message: %d, %v, want 1 without error", k, err)
	}
	if k, err := q.WriteBatch(bad[1:], 0); k != 0 || err == nil {
		t.Errorf("a bad first message: %d, %v", k, err)
	}
}

// TestUDPBurst: the default buffer holds a burst that is not read meanwhile.
func TestUDPBurst(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	p, err := server.ListenUDP("udp4", &net.UDPAddr{IP: netpair.ServerIP4.AsSlice()})
	must(t, err)
	must(t, p.SetDeadline(time.Now().Add(hangs)))
	q, err := client.DialUDP("udp", nil, p.LocalAddr().(*net.UDPAddr))
	must(t, err)
	_, err = q.Write([]byte("first")) // resolves the neighbour
	must(t, err)
	_, err = p.Read(make([]byte, 8))
	must(t, err)
	const n = 5000
	for range n {
		_, err := q.Write(make([]byte, 64))
		must(t, err)
	}
	for i := range n {
		if _, err := p.Read(make([]byte, 64)); err != nil {
			t.Fatalf("after %d of %d datagrams: %v", i, n, err)
		}
	}
}

// TestUDPFragments: a datagram that fits a packet must not be fragmented on its way, a larger one
// is fragmented by us, and its fragments may be fragmented again.
func TestUDPFragments(t *testing.T) {
	type packet struct{ dont, fragment bool }
	packets := make(chan packet, 100)
	server, client := netpair.New(t, netpair.Faults{Tap: func(end int, f []byte) bool {
		if end == 1 && f[12] == 8 && f[13] == 0 && f[23] == 17 {
			packets <- packet{f[20]&0x40 != 0, f[20]&0x3f != 0 || f[21] != 0}
		}
		return false
	}})
	p, err := server.ListenUDP("udp4", nil)
	must(t, err)
	must(t, p.SetDeadline(time.Now().Add(hangs)))
	q, err := client.DialUDP("udp", nil, &net.UDPAddr{IP: netpair.ServerIP4.AsSlice(),
		Port: p.LocalAddr().(*net.UDPAddr).Port})
	must(t, err)
	for size, want := range map[int][]packet{
		1472: {{true, false}},
		1473: {{false, true}, {false, true}},
	} {
		_, err := q.Write(make([]byte, size))
		must(t, err)
		n, err := p.Read(make([]byte, 2000))
		must(t, err)
		if n != size {
			t.Errorf("%d bytes of %d", n, size)
		}
		for _, w := range want {
			if got := <-packets; got != w {
				t.Errorf("packet of a datagram of %d bytes: DF, fragment = %v, want %v", size, got,
					w)
			}
		}
	}
}

// TestUDPFragmentsOfTwo: the fragments of two datagrams to a host, a group or all differ in their
// identification, without which a receiver joins those of one to the other's.
func TestUDPFragmentsOfTwo(t *testing.T) {
	const size, parts = 4000, 3
	frames := make(chan []byte, 100)
	_, client := netpair.New(t, netpair.Faults{Tap: func(end int, f []byte) bool {
		if end == 1 && f[12] == 8 && f[13] == 0 && f[23] == 17 {
			frames <- slices.Clone(f)
		}
		return false
	}})
	c, err := client.ListenUDP("udp4", nil)
	must(t, err)
	for _, to := range []net.IP{netpair.ServerIP4.AsSlice(), net.IPv4bcast, mdns4} {
		t.Run(to.String(), func(t *testing.T) {
			var seen [2]uint16
			for i := range seen {
				_, err := c.WriteTo(make([]byte, size), &net.UDPAddr{IP: to, Port: 9})
				must(t, err)
				for range parts {
					f := <-frames
					if f[20]&0x40 != 0 {
						t.Error("a fragment must not be fragmented")
					}
					seen[i] = binary.BigEndian.Uint16(f[18:])
				}
			}
			if seen[0] == seen[1] {
				t.Errorf("the fragments of two datagrams have the identification %d", seen[0])
			}
		})
	}
}

// TestUDPManyPeers has more peers than a socket caches routes for.
func TestUDPManyPeers(t *testing.T) {
	var frames atomic.Int64
	server, client := netpair.New(t,
		netpair.Faults{Tap: func(int, []byte) bool { frames.Add(1); return false }}, viaServer)
	p, err := server.ListenUDP("udp4", nil)
	must(t, err)
	go echo(p)
	q, err := client.ListenUDP("udp4", nil)
	must(t, err)
	must(t, q.SetDeadline(time.Now().Add(hangs)))
	_, err = q.WriteTo([]byte("x"), &net.UDPAddr{IP: netpair.ServerIP4.AsSlice(),
		Port: p.LocalAddr().(*net.UDPAddr).Port})
	must(t, err)
	_, err = q.Read(make([]byte, 8)) // the neighbour is resolved
	must(t, err)
	before := frames.Load()
	const n = 10000
	for i := range n {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(113 + i>>8), byte(i)}), 9)
		_, err := q.WriteToUDPAddrPort([]byte("x"), to)
		must(t, err)
	}
	if got := frames.Load() - before; got < n {
		t.Errorf("%d frames for %d datagrams", got, n)
	}
}

// TestUDPGroups sends to a group and to broadcast, which need no gateway.
func TestUDPGroups(t *testing.T) {
	want := map[string]string{
		"\x01\x00\x5e\x01\x02\x03": "239.1.2.3",
		"\x33\x33\x00\x00\x01\x23": "ff02::123",
		"\xff\xff\xff\xff\xff\xff": "192.0.2.255",
	}
	seen := make(chan string, 100)
	_, client := netpair.New(t, netpair.Faults{Tap: func(end int, f []byte) bool {
		if end == 1 && bytes.HasSuffix(f, []byte("everybody")) {
			seen <- string(f[:6])
		}
		return false
	}})
	q, err := client.ListenUDP("udp", nil)
	must(t, err)
	for mac, group := range want {
		_, err := q.WriteTo([]byte("everybody"), &net.UDPAddr{IP: net.ParseIP(group), Port: 9})
		must(t, err)
		if got := <-seen; got != mac {
			t.Errorf("%s went to % x, want % x", group, got, mac)
		}
	}
	_, err = q.WriteTo([]byte("everybody"), &net.UDPAddr{IP: net.IPv4bcast, Port: 9})
	must(t, err)
	if got := <-seen; got != "\xff\xff\xff\xff\xff\xff" {
		t.Errorf("255.255.255.255 went to % x", got)
	}
}
