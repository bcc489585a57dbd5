package rdma

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// datagram is the headers of n bytes from a host's port 7 to another's port 53, without checksums.
func datagram(from, to *host, v6 bool, n int) []byte {
	at := to.v4
	if v6 {
		at = to.v6
	}
	return datagramTo(from, to.ep.LinkAddress(), at, n)
}

// datagramTo does what datagram does, for a host that is not one of ours.
func datagramTo(from *host, mac tcpip.LinkAddress, to netip.Addr, n int) []byte {
	udp := make([]byte, hdr.UDPLen)
	header.UDP(udp).Encode(&header.UDPFields{SrcPort: 7, DstPort: 53,
		Length: uint16(hdr.UDPLen + n)})
	eth := make([]byte, hdr.EthLen)
	fields := header.EthernetFields{SrcAddr: from.ep.LinkAddress(), DstAddr: mac,
		Type: hdr.TypeIPv4}
	var ip []byte
	if to.Is6() {
		fields.Type, ip = hdr.TypeIPv6, make([]byte, hdr.IPv6Len)
		header.IPv6(ip).Encode(&header.IPv6Fields{
			PayloadLength: uint16(hdr.UDPLen + n), TransportProtocol: hdr.ProtoUDP, HopLimit: 64,
			SrcAddr: tcpip.AddrFromSlice(from.v6.AsSlice()),
			DstAddr: tcpip.AddrFromSlice(to.AsSlice()),
		})
	} else {
		ip = make([]byte, hdr.IPv4Len)
		header.IPv4(ip).Encode(&header.IPv4Fields{
			TotalLength: uint16(hdr.IPv4Len + hdr.UDPLen + n), TTL: 64, Protocol: hdr.ProtoUDP,
			SrcAddr: tcpip.AddrFromSlice(from.v4.AsSlice()),
			DstAddr: tcpip.AddrFromSlice(to.AsSlice()),
		})
	}
	header.Ethernet(eth).Encode(&fields)
	return append(append(eth, ip...), udp...)
}

// TestDatagram sends to another stack, which verifies every checksum.
func TestDatagram(t *testing.T) {
	a, b := pair(t, setup{dv: dv.Config{NIC: dv.NIC{TxQueues: 2}}})
	for _, v6 := range []bool{false, true} {
		at := b.v4
		if v6 {
			at = b.v6
		}
		conn := b.udp(t, netip.AddrPortFrom(at, 53), netip.AddrPort{})
		before := a.stack.Stats().NICs.Tx.Bytes.Value()
		sent := 0
		for _, n := range []int{0, 1, 18, 63, 64, 65, 1000, 1452} {
			want, got := bytes.Repeat([]byte{byte(n), 0xa5}, n)[:n], make([]byte, 2000)
			headers := datagram(a, b, v6, n)
			if err := a.ep.WriteDatagram(headers, want); err != nil {
				t.Fatalf("%d bytes: %s", n, err)
			}
			sent += len(headers) + n
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			m, from, err := conn.ReadFrom(got)
			if err != nil || !bytes.Equal(got[:m], want) {
				t.Fatalf("%d bytes: got %d, %v", n, m, err)
			}
			if from.(*net.UDPAddr).Port != 7 {
				t.Errorf("%d bytes: from %v", n, from)
			}
		}
		if got := a.stack.Stats().NICs.Tx.Bytes.Value() - before; got != uint64(sent) {
			t.Errorf("%d bytes counted, %d sent", got, sent)
		}
	}
	if bad := b.ep.Stats().RxBadChecksum; bad != 0 {
		t.Errorf("%d bad checksums", bad)
	}
	if v := a.nic.Violations(); len(v) != 0 {
		t.Errorf("what no driver should do: %q", v)
	}
	if got := a.stack.Stats().IP.PacketsSent.Value(); got < 16 {
		t.Errorf("%d packets counted", got)
	}
}

// is reports whether an error is of the same kind as another.
func is[E tcpip.Error](err tcpip.Error) bool {
	_, ok := err.(E)
	return ok
}

func TestDatagramRefusals(t *testing.T) {
	a, b := pair(t, setup{})
	if err := a.ep.WriteDatagram(datagram(a, b, false, 1473),
		make([]byte, 1473+4)); !is[*tcpip.ErrMessageTooLong](err) {
		t.Errorf("too long: %v", err)
	}
	a.ep.Attach(nil)
	if err := a.ep.WriteDatagram(datagram(a, b, false, 1),
		make([]byte, 1)); !is[*tcpip.ErrNotSupported](err) {
		t.Errorf("without a stack: %v", err)
	}
	a.ep.Close()
	if err := a.ep.WriteDatagram(datagram(a, b, false, 1),
		make([]byte, 1)); !is[*tcpip.ErrClosedForSend](err) {
		t.Errorf("closed: %v", err)
	}
}

func TestDatagramNeedsChecksums(t *testing.T) {
	a, b := pair(t, setup{})
	a.ep.csum = false
	if err := a.ep.WriteDatagram(datagram(a, b, false, 1),
		make([]byte, 1)); !is[*tcpip.ErrNotSupported](err) {
		t.Errorf("%v", err)
	}
}

func TestDatagramOnAFullRing(t *testing.T) {
	a, b := pair(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 256}}}})
	held := hold(a.nic)
	headers, payload := datagram(a, b, false, 1000), make([]byte, 1000)
	before := a.ep.Stats()
	sent := uint64(0)
	err := a.ep.WriteDatagram(headers, payload)
	for ; err == nil; err = a.ep.WriteDatagram(headers, payload) {
		if sent++; sent > 1000 {
			t.Fatal("the ring does not fill")
		}
	}
	if !is[*tcpip.ErrNoBufferSpace](err) {
		t.Errorf("full ring: %v", err)
	}
	if s := a.ep.Stats(); s.TxWaits == before.TxWaits || s.TxDropped == before.TxDropped ||
		s.TxPackets < before.TxPackets+sent {
		t.Errorf("%d sent: %+v", sent, s)
	}
	urgent := tcpframe.ResetPacket()
	defer urgent.DecRef()
	if err := a.ep.writeOne(urgent); err != nil {
		t.Errorf("datagrams leave no room for what is urgent: %s", err)
	}
	held.release()
	if err := a.ep.WriteDatagram(headers, payload); err != nil {
		t.Errorf("after the completions: %v", err)
	}
}

func TestDatagramDoesNotAllocate(t *testing.T) {
	a, b := pair(t, setup{})
	headers, payload := datagram(a, b, false, 64), make([]byte, 64)
	b.ep.Close() // or it answers, from other goroutines
	if n := testing.AllocsPerRun(200, func() { a.ep.WriteDatagram(headers, payload) }); n >= 1 &&
		!racing.Detector {
		t.Errorf("%v allocations", n)
	}
}

// TestDatagrams sends a batch to several ports over two queues; each port's arrive in order.
func TestDatagrams(t *testing.T) {
	a, b := pair(t, setup{dv: dv.Config{NIC: dv.NIC{TxQueues: 2}}})
	const ports, each = 16, 10
	var ds []Datagram
	for i := range ports * each {
		headers := datagram(a, b, false, 2)
		header.UDP(headers[hdr.EthLen+hdr.IPv4Len:]).SetDestinationPort(uint16(53 + i%ports))
		ds = append(ds, Datagram{Headers: headers, Payload: []byte{byte(i / ports), 0xa5}})
	}
	var conns []net.PacketConn
	for i := range ports {
		conns = append(conns, b.udp(t, netip.AddrPortFrom(b.v4, uint16(53+i)), netip.AddrPort{}))
	}
	if n, err := a.ep.WriteDatagrams(ds); n != len(ds) || err != nil {
		t.Fatalf("%d sent, %v", n, err)
	}
	for i, conn := range conns {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		for j := range each {
			got := make([]byte, 10)
			n, _, err := conn.ReadFrom(got)
			if err != nil || n != 2 || got[0] != byte(j) {
				t.Fatalf("port %d, datagram %d: % x, %v", i, j, got[:n], err)
			}
		}
	}
	for i, q := range a.dev.Stats().Tx {
		if q.Packets == 0 {
			t.Errorf("queue %d: nothing", i)
		}
	}
	if s := a.ep.Stats(); s.TxPackets < ports*each {
		t.Errorf("%d packets counted", s.TxPackets)
	}
	if v := a.nic.Violations(); len(v) != 0 {
		t.Errorf("what no driver should do: %q", v)
	}
}

// TestWholeDatagrams sends datagrams in one piece and in two, in a VLAN and in none, with a filter
// that looks at each, and as replies: all come, in order.
func TestWholeDatagrams(t *testing.T) {
	for name, s := range map[string]setup{
		"plain": {}, "in a VLAN": {dv: dv.Config{NIC: dv.NIC{VLAN: 100}}},
		"filter": {opts: Options{Filter: newFilter(t, "chain output { policy accept; }")}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, s)
			for _, v6 := range []bool{false, true} {
				at := map[bool]netip.Addr{false: b.v4, true: b.v6}[v6]
				conn := b.udp(t, netip.AddrPortFrom(at, 53), netip.AddrPort{})
				var ds []Datagram
				for i := range 40 {
					d := Datagram{Headers: datagram(a, b, v6, 200), Payload: make([]byte, 200)}
					if d.Payload[0] = byte(i); i%7 != 3 {
						d = Datagram{Headers: append(d.Headers, d.Payload...)}
					}
					ds = append(ds, d)
				}
				before := a.ep.Stats().TxPackets
				if n, err := a.ep.WriteReplies(0, ds); n != len(ds) || err != nil {
					t.Fatalf("%d sent, %v", n, err)
				}
				if n := a.ep.Stats().TxPackets - before; n < uint64(len(ds)) {
					t.Errorf("%d counted", n)
				}
				conn.SetReadDeadline(time.Now().Add(time.Minute))
				for i := range ds {
					got := make([]byte, 300)
					n, _, err := conn.ReadFrom(got)
					if err != nil || n != 200 || got[0] != byte(i) {
						t.Fatalf("datagram %d: %d bytes, % x, %v", i, n, got[:1], err)
					}
				}
			}
			if v := a.nic.Violations(); len(v) != 0 {
				t.Errorf("what no driver should do: %q", v)
			}
		})
	}
}

// TestDatagramsOfOne sends many datagrams by one call, which the NIC cuts up or, where it cannot or
// takes less, the link: they are the same.
func TestDatagramsOfOne(t *testing.T) {
	for name, c := range map[string]struct {
		s   setup
		uso uint64 // packets for the NIC to cut up, of the 20,001 bytes
	}{
		"NIC":              {setup{}, 1},
		"NIC, in a VLAN":   {setup{dv: dv.Config{NIC: dv.NIC{VLAN: 100}}}, 1},
		"NIC, with little": {setup{caps: func(c *simnic.Caps) { c.MaxLSO = 1 << 13 }}, 3},
		"link":             {setup{caps: func(c *simnic.Caps) { c.MaxLSO = 0 }}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, c.s)
			for _, v6 := range []bool{false, true} {
				at := b.v4
				if v6 {
					at = b.v6
				}
				conn := b.udp(t, netip.AddrPortFrom(at, 53), netip.AddrPort{})
				for _, n := range []int{0, 1, 1000, 1001, 2000, 20001} {
					before, counted := a.ep.Stats(), a.stack.Stats().NICs.Tx.Packets.Value()
					payload := patternOf(n)
					d := Datagram{Headers: datagram(a, b, v6, n), Payload: payload, Segment: 1000}
					want := max(1, (n+999)/1000)
					if got := d.Count(); got != want {
						t.Errorf("%d bytes are %d datagrams", n, got)
					}
					if m, err := a.ep.WriteDatagrams([]Datagram{d}); m != 1 || err != nil {
						t.Fatalf("%d bytes: %v", n, err)
					}
					conn.SetReadDeadline(time.Now().Add(time.Minute))
					var got []byte
					for i := range want {
						buf := make([]byte, 2000)
						m, _, err := conn.ReadFrom(buf)
						if err != nil || m != min(1000, n-len(got)) {
							t.Fatalf("datagram %d of %d: %d bytes, %v", i, n, m, err)
						}
						got = append(got, buf[:m]...)
					}
					if !bytes.Equal(got, payload) {
						t.Errorf("%d bytes: not what was sent", n)
					}
					s := a.ep.Stats()
					packets := max(1, c.uso*uint64(n/20001))
					sent := a.stack.Stats().NICs.Tx.Packets.Value() - counted
					if n == 20001 && (s.TxUSO-before.TxUSO != c.uso || s.TxLSO != s.TxUSO) ||
						n <= 1000 && s.TxUSO != before.TxUSO || sent < uint64(want) ||
						s.TxPackets-before.TxPackets < packets {
						t.Errorf("%d bytes: %+v, before %+v", n, s, before)
					}
				}
			}
			if bad := b.ep.Stats().RxBadChecksum; bad != 0 {
				t.Errorf("%d bad checksums", bad)
			}
			if v := a.nic.Violations(); len(v) != 0 {
				t.Errorf("what no driver should do: %q", v)
			}
			for _, segment := range []int{1473, 3000} {
				d := Datagram{Headers: datagram(a, b, false, 4000), Payload: make([]byte, 4000),
					Segment: segment}
				if n, err := a.ep.WriteDatagrams([]Datagram{d}); n != 0 ||
					!is[*tcpip.ErrMessageTooLong](err) {
					t.Errorf("datagrams of %d bytes: %d sent, %v", segment, n, err)
				}
			}
		})
	}
}

// patternOf returns n bytes that differ.
func patternOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// TestDatagramsStop where the ring is full, or where a datagram is too long.
func TestDatagramsStop(t *testing.T) {
	a, b := pair(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 256}}}})
	small, long := Datagram{Headers: datagram(a, b, false, 1000),
		Payload: make([]byte, 1000)},
		Datagram{Headers: datagram(a, b, false, 1473), Payload: make([]byte, 1477)}
	// a closed port would answer, after ARP
	conn := b.udp(t, netip.AddrPortFrom(b.v4, 53), netip.AddrPort{})
	before := a.ep.Stats().TxPackets
	if n, err := a.ep.WriteDatagrams([]Datagram{small, small, long, small}); n != 2 ||
		!is[*tcpip.ErrMessageTooLong](err) {
		t.Errorf("too long: %d sent, %v", n, err)
	}
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	for range 2 {
		if _, _, err := conn.ReadFrom(make([]byte, 2000)); err != nil {
			t.Fatal(err)
		}
	}
	if n := a.ep.Stats().TxPackets - before; n != 2 {
		t.Errorf("too long: %d counted", n)
	}
	held := hold(a.nic)
	defer held.release()
	many := make([]Datagram, 1000)
	for i := range many {
		many[i] = small
	}
	if n, err := a.ep.WriteDatagrams(many); n == 0 || n == len(many) ||
		!is[*tcpip.ErrNoBufferSpace](err) {
		t.Errorf("full ring: %d sent, %v", n, err)
	}
}
