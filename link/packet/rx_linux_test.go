package packet

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"golang.org/x/sys/unix"
)

// TestFilter sends frames of every kind and expects ours, and only ours, in order.
func TestFilter(t *testing.T) {
	tag := func(tci uint16, f []byte) []byte {
		tagged := append([]byte(nil), f[:12]...)
		tagged = binary.BigEndian.AppendUint16(tagged, typeVLAN)
		return append(binary.BigEndian.AppendUint16(tagged, tci), f[12:]...)
	}
	const experimental = 0x88b5
	to := func(dst ...byte) []byte {
		return eth.Ethernet(dst, peerMAC, experimental, eth.Payload(60))
	}
	kinds := []struct {
		name            string
		frame           []byte
		untagged, vlan5 bool
	}{
		{"ours", to(ourMAC...), true, false},
		{"the netdev's", to(netdev...), false, false},
		{"a stranger's", to(2, 0, 0, 0, 0, 0x1a), false, false},
		{"a stranger's, other half", to(2, 0x10, 0, 0, 0, 0x0a), false, false},
		{"broadcast", to(255, 255, 255, 255, 255, 255), true, false},
		{"group", to(0x33, 0x33, 0, 0, 0, 1), true, false},
		{"of VLAN 5", tag(5, to(ourMAC...)), false, true},
		{"of VLAN 5 with priority", tag(3<<13|5, to(ourMAC...)), false, true},
		{"of VLAN 6", tag(6, to(ourMAC...)), false, false},
		{"a mere priority", tag(3<<13, to(ourMAC...)), true, false},
		{"broadcast of VLAN 5", tag(5, to(255, 255, 255, 255, 255, 255)), false, true},
		{"the last", to(ourMAC...), true, false},
		{"the last of VLAN 5", tag(5, to(ourMAC...)), false, true},
	}
	for _, vlan := range []uint16{0, 5} {
		t.Run(fmt.Sprintf("vlan %d", vlan), func(t *testing.T) {
			w := newWorld(t)
			p := w.open(t, Config{VLAN: vlan})
			raw := w.rawSocket(t, 0)
			var want []string
			for i, k := range kinds {
				k.frame[len(k.frame)-1] = byte(i)
				must(t, unix.Send(raw, k.frame, 0))
				if vlan == 0 && k.untagged || vlan == 5 && k.vlan5 {
					want = append(want, k.name)
				}
			}
			var got []string
			for _, f := range receive(t, p.Rx(0), len(want)) {
				got = append(got, kinds[f.Data[len(f.Data)-1]].name)
				if vlan != 0 && f.Flags&RxTagged == 0 || f.VLAN&vlanID != vlan {
					t.Errorf("%s: flags %#x, tag %#x", got[len(got)-1], f.Flags, f.VLAN)
				}
				if binary.BigEndian.Uint16(f.Data[12:]) != experimental {
					t.Errorf("%s: the tag is in the frame", got[len(got)-1])
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestMergedSegments has the peer send 20 KB of TCP in one frame, as its kernel would.
func TestMergedSegments(t *testing.T) {
	for name, peer := range map[string]struct{ src, dst netip.Addr }{
		"v4": {peerIP.Addr(), ourIP.Addr()}, "v6": {peerIPv6.Addr(), ourIPv6.Addr()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p, before := w.openWithoutGroups(t)
			raw := w.rawSocket(t, 1)
			frame := eth.Ethernet(ourMAC, peerMAC, etherType(peer.src),
				eth.IP(peer.src, peer.dst, protoTCP, eth.TCP(1, 2, 0x10, eth.Payload(20000))))
			must(t, unix.Send(raw, append(vnetOf(frame, 1448), frame...), 0))
			f := receive(t, p.Rx(0), 1)[0]
			if f.GSOSize != 1448 || f.Flags&RxChecksumOK == 0 || !bytes.Equal(f.Data, frame) {
				t.Errorf("GSO size %d, flags %#x, %d bytes of %d", f.GSOSize, f.Flags,
					len(f.Data), len(frame))
			}
			if s := p.Stats().Rx[0]; s.Merged != 1 || s.Frames-before.Frames != 1 {
				t.Errorf("%+v, before %+v", s, before)
			}
		})
	}
}

func etherType(a netip.Addr) uint16 {
	if a.Is6() {
		return typeIPv6
	}
	return typeIPv4
}

// vnetOf is a virtio_net_hdr as a sender writes it for a TCP frame to be cut up.
func vnetOf(frame []byte, gso uint16) []byte {
	at, kind := ethLen+ipv4Len, byte(1)
	if frame[ethLen]>>4 == 6 {
		at, kind = ethLen+ipv6Len, 4
	}
	v := []byte{1, kind}
	for _, n := range []uint16{uint16(at + tcpLen), gso, uint16(at), 16} {
		v = binary.NativeEndian.AppendUint16(v, n)
	}
	return v
}

// TestUnfinishedChecksum has the peer's kernel send a datagram, whose checksum a veth pair leaves
// out, and expects it marked as verified; a datagram with a wrong checksum from a packet socket
// must not be.
func TestUnfinishedChecksum(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	conn, err := w.peer.DialContext(context.Background(), "udp", ourIP.Addr().String()+":53")
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("question"))
	must(t, err)
	f := receiveQuestion(t, p.Rx(0))
	if eth.SumOK(f.Data) || f.Flags&RxChecksumOK == 0 {
		t.Errorf("checksum in the frame: %v, flags %#x; want an unfinished one, vouched for",
			eth.SumOK(f.Data), f.Flags)
	}
	wrong := eth.UDP(1, 53, []byte("question"))
	wrong[6], wrong[7] = 0xba, 0xad
	must(t, unix.Send(w.rawSocket(t, 0), eth.Ethernet(ourMAC, peerMAC, typeIPv4,
		eth.IP(peerIP.Addr(), ourIP.Addr(), protoUDP, wrong)), 0))
	if f := receiveQuestion(t, p.Rx(0)); f.Flags&(RxChecksumOK|RxHeaderOK) != 0 {
		t.Errorf("a wrong checksum: flags %#x", f.Flags)
	}
}

// receiveQuestion returns the next datagram to port 53 over IPv4. The peer's kernel also reports
// its groups (MLD), up to a second after its interface is up.
func receiveQuestion(t *testing.T, q Receiver) Frame {
	t.Helper()
	for {
		f := receive(t, q, 1)[0]
		if len(f.Data) >= ethLen+ipv4Len+8 && binary.BigEndian.Uint16(f.Data[12:]) == typeIPv4 &&
			f.Data[ethLen+9] == protoUDP &&
			binary.BigEndian.Uint16(f.Data[ethLen+ipv4Len+2:]) == 53 {
			return f
		}
	}
}

// TestSplitDatagrams has the peer's kernel send 50 datagrams with one call (UDP_SEGMENT), which a
// veth pair passes in one frame.
func TestSplitDatagrams(t *testing.T) {
	for _, to := range []netip.Addr{ourIP.Addr(), ourIPv6.Addr()} {
		t.Run(to.String(), func(t *testing.T) {
			w := newWorld(t)
			p := w.open(t, Config{})
			conn, err := w.peer.DialContext(context.Background(), "udp",
				netip.AddrPortFrom(to, 4433).String())
			must(t, err)
			defer conn.Close()
			raw, err := conn.(*net.UDPConn).SyscallConn()
			must(t, err)
			const size, count, last = 1200, 50, 700
			must(t, raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size)
			}))
			must(t, err)
			sent := eth.Payload(size*(count-1) + last)
			_, err = conn.Write(sent)
			must(t, err)
			var got []byte
			for i, f := range receive(t, p.Rx(0), count) {
				at := ethLen + ipv4Len + udpLen
				if to.Is6() {
					at = ethLen + ipv6Len + udpLen
				} else if eth.Sum(f.Data[ethLen:ethLen+ipv4Len]) != 0xffff {
					t.Errorf("datagram %d: IP header checksum is wrong", i)
				}
				if n := binary.BigEndian.Uint16(f.Data[at-4:]); int(n) != len(f.Data)-at+udpLen {
					t.Errorf("datagram %d says %d bytes, has %d", i, n, len(f.Data)-at+udpLen)
				}
				if f.Flags&RxChecksumOK == 0 {
					t.Errorf("datagram %d is not vouched for", i)
				}
				got = append(got, f.Data[at:]...)
			}
			if !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came, %d were sent, or they differ", len(got), len(sent))
			}
		})
	}
}

// TestFanout requires every flow on one queue, flows on every queue, and no duplicated frame.
func TestFanout(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{Queues: 4})
	const flows, each = 64, 4
	for range flows {
		conn, err := w.peer.DialContext(context.Background(), "udp", ourIP.Addr().String()+":53")
		must(t, err)
		defer conn.Close()
		for range each {
			_, err = conn.Write([]byte("question"))
			must(t, err)
		}
	}
	queueOf, total := map[uint16]int{}, 0
	for i := range p.NumQueues() {
		var batch [flows * each]Frame
		have := 0
		for n := p.Rx(i).Receive(batch[:]); n > 0; n = p.Rx(i).Receive(batch[:]) {
			for _, f := range batch[:n] {
				if f.Data[0]&1 != 0 { // IPv6 begins on an interface with messages to groups
					continue
				}
				have++
				port := binary.BigEndian.Uint16(f.Data[ethLen+ipv4Len:])
				if q, seen := queueOf[port]; seen && q != i {
					t.Errorf("flow %d is on queues %d and %d", port, q, i)
				}
				queueOf[port] = i
			}
		}
		if have == 0 {
			t.Errorf("queue %d has nothing", i)
		}
		total += have
	}
	if total != flows*each {
		t.Errorf("%d frames, want %d", total, flows*each)
	}
}

// TestDropsAreCounted sends more than the socket's buffer takes.
func TestDropsAreCounted(t *testing.T) {
	w := newWorld(t)
	p, before := w.openWithoutGroups(t)
	must(t, unix.SetsockoptInt(p.rx[0].fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<10))
	raw := w.rawSocket(t, 0)
	var batch [500]Frame
	for range batch {
		must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, 0x88b5, eth.Payload(1000)), 0))
	}
	got := 0
	for n := p.Rx(0).Receive(batch[:]); n > 0; n = p.Rx(0).Receive(batch[:]) {
		got += n
	}
	s := p.Stats().Rx[0]
	frames, dropped := s.Frames-before.Frames, s.Dropped-before.Dropped
	if got == len(batch) || frames != uint64(got) || frames+dropped != uint64(len(batch)) {
		t.Errorf("%d of %d came, counted %+v, before %+v", got, len(batch), s, before)
	}
	if again := p.Stats().Rx[0]; again.Dropped != s.Dropped {
		t.Errorf("%d drops, then %d", s.Dropped, again.Dropped)
	}
}

// TestLooksInVain counts system calls: a look at a socket just emptied, or just before Wait, which
// looks itself, costs none.
func TestLooksInVain(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	must(t, p.SetGroups(nil)) // what the peer's kernel announces does not count
	q, raw, frame := p.rx[0], w.rawSocket(t, 0), eth.Ethernet(ourMAC, peerMAC, 0x88b5,
		eth.Payload(60))
	var batch [2 * rxBatch]Frame
	for q.Receive(batch[:]) > 0 || q.empty {
		continue
	}
	calls := func() uint64 { return q.countersNow().Calls }
	look := func(what string, frames, cost int) {
		t.Helper()
		before := calls()
		if n := q.Receive(batch[:]); n != frames || calls()-before != uint64(cost) {
			t.Errorf("%s: %d frames for %d calls, want %d for %d", what, n, calls()-before, frames,
				cost)
		}
	}
	for range rxBatch + 1 {
		must(t, unix.Send(raw, frame, 0))
	}
	look("a full batch", rxBatch, 1)
	look("the frame behind it", 1, 1)
	look("behind the last frame", 0, 0)
	look("later", 0, 1)
	q.Arm()
	look("when armed", 0, 0)
	must(t, unix.Send(raw, frame, 0))
	before := calls()
	must(t, q.Wait())
	if n := calls() - before; n != 1 {
		t.Errorf("Wait took %d calls, want 1", n)
	}
	look("what Wait has found", 1, 0)
	q.Arm()
	must(t, unix.Send(raw, frame, 0))
	look("when armed, with a frame", 0, 0)
	must(t, q.Wait())
	look("then", 1, 0)
}
