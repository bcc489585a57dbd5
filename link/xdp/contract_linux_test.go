package xdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
)

// TestFrames sends frames of every kind and expects ours, and only ours.
func TestFrames(t *testing.T) {
	tag := func(tci uint16, f []byte) []byte {
		tagged := append([]byte(nil), f[:12]...)
		tagged = binary.BigEndian.AppendUint16(tagged, typeVLAN)
		return append(binary.BigEndian.AppendUint16(tagged, tci), f[12:]...)
	}
	to := func(dst ...byte) []byte {
		return eth.Ethernet(dst, peerMAC, experimental, eth.Payload(60))
	}
	frames := []struct {
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
	eachKind(t, func(t *testing.T, w *world, open opener) {
		raw := w.rawSocket(t)
		for _, vlan := range []uint16{0, 5} {
			p := open(packet.Config{VLAN: vlan})
			r := receiveAll(p)
			var want, got []string
			for i, k := range frames {
				k.frame[len(k.frame)-1] = byte(i)
				must(t, unix.Send(raw, k.frame, 0))
				if vlan == 0 && k.untagged || vlan == 5 && k.vlan5 {
					want = append(want, k.name)
				}
			}
			for range want {
				f := r.next(t)
				got = append(got, frames[f.Data[len(f.Data)-1]].name)
				if vlan != 0 && f.Flags&packet.RxTagged == 0 || f.VLAN&vlanID != vlan {
					t.Errorf("%s: flags %#x, tag %#x", got[len(got)-1], f.Flags, f.VLAN)
				}
				if binary.BigEndian.Uint16(f.Data[12:]) != experimental {
					t.Errorf("%s: the tag is in the frame", got[len(got)-1])
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("VLAN %d: got %q, want %q", vlan, got, want)
			}
			must(t, p.Close())
			if len(r.frames) > 0 {
				t.Errorf("VLAN %d: %d frames too many", vlan, len(r.frames))
			}
		}
	})
}

// TestDatagrams exchanges datagrams with the peer's kernel, which verifies our checksums.
func TestDatagrams(t *testing.T) {
	for _, a := range []struct{ ours, peer netip.Addr }{
		{ourIP.Addr(), peerIP.Addr()}, {ourIPv6.Addr(), peerIPv6.Addr()},
	} {
		eachKind(t, func(t *testing.T, w *world, open opener) {
			p := open(packet.Config{})
			r := receiveAll(p)
			conn, err := w.peer.ListenPacket("udp", netip.AddrPortFrom(a.peer, 7).String())
			must(t, err)
			defer conn.Close()
			must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			for n := range 40 {
				data := eth.Payload(1 + n*36)
				_, err = conn.WriteTo(data, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.ours, 9)))
				must(t, err)
				f := r.next(t)
				if !bytes.HasSuffix(f.Data, data) || !eth.SumOK(f.Data) {
					t.Fatalf("% x", f.Data)
				}
				frame := ipFrame(peerMAC, a.ours, a.peer, protoUDP, eth.UDP(9, 7, data))
				copy(frame[6:], ourMAC)
				send(t, p.Tx(0), packet.TxFrame{Bufs: [][]byte{frame[:30], frame[30:]},
					Flags: packet.TxChecksum})
				b := make([]byte, 2000)
				k, from, err := conn.ReadFrom(b)
				must(t, err)
				if !bytes.Equal(b[:k], data) ||
					from.String() != netip.AddrPortFrom(a.ours, 9).String() {
					t.Fatalf("%d bytes from %v, want %d", k, from, len(data))
				}
			}
		})
	}
}

// send posts frames and flushes.
func send(t testing.TB, q packet.Sender, frames ...packet.TxFrame) {
	t.Helper()
	q.Lock()
	defer q.Unlock()
	for i := range frames {
		must(t, q.Post(&frames[i]))
	}
	q.Flush()
}

// TestSegments lets a segment of 20 KB be cut up, and looks at what comes out.
func TestSegments(t *testing.T) {
	for _, a := range []struct{ ours, peer netip.Addr }{
		{ourIP.Addr(), peerIP.Addr()}, {ourIPv6.Addr(), peerIPv6.Addr()},
	} {
		eachKind(t, func(t *testing.T, w *world, open opener) {
			p := open(packet.Config{})
			raw := w.rawSocket(t)
			const mss, fin, psh, ack, cwr = 1400, 1, 8, 16, 0x80
			data := eth.Payload(20000)
			frame := ipFrame(peerMAC, a.ours, a.peer, protoTCP,
				eth.TCP(80, 1234, fin|psh|ack|cwr, data))
			copy(frame[6:], ourMAC)
			send(t, p.Tx(0), packet.TxFrame{Bufs: [][]byte{frame[:40], frame[40:100], frame[100:]},
				GSOSize: mss})
			var got []byte
			for len(got) < len(data) {
				f := nextFrom(t, raw, ourMAC)
				header := len(frame) - len(data)
				at := header - tcpLen
				first, last := len(got) == 0, len(got)+mss >= len(data)
				want := byte(ack)
				if first {
					want |= cwr
				}
				if last {
					want |= fin | psh
				}
				if f[at+13] != want || !eth.SumOK(f) ||
					binary.BigEndian.Uint32(f[at+4:]) != 1000+uint32(len(got)) ||
					len(f) > header+mss {
					t.Fatalf("at %d: %d bytes, flags %#x, sum %v: % x", len(got), len(f), f[at+13],
						eth.SumOK(f), f[:header])
				}
				got = append(got, f[header:]...)
			}
			if !bytes.Equal(got, data) {
				t.Error("another payload arrived")
			}
			if s := p.Stats().Tx[0]; s.GSO != 1 || s.Dropped != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestTagged sends frames with a tag and a checksum.
func TestTagged(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{VLAN: 5})
		raw := w.rawSocket(t)
		must(t, unix.SetsockoptInt(raw, unix.SOL_PACKET, unix.PACKET_AUXDATA, 0))
		frame := ipFrame(peerMAC, ourIP.Addr(), peerIP.Addr(), protoUDP, eth.UDP(1, 2,
			eth.Payload(100)))
		copy(frame[6:], ourMAC)
		send(t, p.Tx(0), packet.TxFrame{Bufs: [][]byte{frame}, VLAN: 5,
			Flags: packet.TxChecksum | packet.TxTag})
		// The peer's kernel takes the tag out, whether the frame has brought it so or not.
		f := nextFrom(t, raw, ourMAC)
		if !eth.SumOK(f) || !bytes.Equal(f[ethLen+ipv4Len+udpLen:], eth.Payload(100)) {
			t.Errorf("% x", f)
		}
	})
}

// TestManyFrames sends and receives more than all rings hold.
func TestManyFrames(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		r := receiveAll(p)
		raw := w.rawSocket(t)
		const rounds, burst = 150, 50
		for round := range rounds {
			for i := range burst {
				must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, experimental,
					binary.BigEndian.AppendUint32(eth.Payload(500), uint32(round*burst+i))), 0))
			}
			for i := range burst {
				f := r.next(t)
				n := binary.BigEndian.Uint32(f.Data[len(f.Data)-4:])
				if n != uint32(round*burst+i) {
					t.Fatalf("frame %d came, not %d", n, round*burst+i)
				}
			}
		}
		for round := range rounds {
			var frames []packet.TxFrame
			for i := range burst {
				frames = append(frames, packet.TxFrame{Bufs: [][]byte{eth.Ethernet(peerMAC, ourMAC,
					experimental, binary.BigEndian.AppendUint32(eth.Payload(500),
						uint32(round*burst+i)))}})
			}
			send(t, p.Tx(0), frames...)
			for i := range burst {
				f := nextFrom(t, raw, ourMAC)
				if n := binary.BigEndian.Uint32(f[len(f)-4:]); n != uint32(round*burst+i) {
					t.Fatalf("frame %d arrived, not %d", n, round*burst+i)
				}
			}
		}
		if n := p.Dropped(); n != 0 {
			t.Errorf("%d frames dropped", n)
		}
		if st := p.Stats(); st.XDP != nil && (st.Rx[0].Frames != rounds*burst ||
			st.Tx[0].Frames != rounds*burst) {
			t.Errorf("they came and went by others than AF_XDP: %+v", st)
		}
	})
}

// TestFrameSizes: what is too short or too long is refused, and nothing else.
func TestFrameSizes(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		q := p.Tx(0)
		for size, want := range map[int]error{ethLen - 1: packet.ErrFrameSize, ethLen: nil,
			ethLen + 1500: nil, ethLen + 1501: packet.ErrFrameSize} {
			q.Lock()
			err := q.Post(&packet.TxFrame{Bufs: [][]byte{make([]byte, size)}})
			q.Flush()
			q.Unlock()
			if !errors.Is(err, want) {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	})
}

// TestMute: a muted port is given nothing, and what it had not delivered is gone.
func TestMute(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		raw := w.rawSocket(t)
		send := func(last byte) {
			must(t, unix.Send(raw, append(eth.Ethernet(ourMAC, peerMAC, experimental,
				eth.Payload(50)),
				last), 0))
		}
		for range 40 {
			send(2)
		}
		must(t, p.Mute())
		must(t, p.SetGroups(nil))
		for range 5 {
			send(3)
		}
		must(t, p.Unmute())
		send(4)
		r := receiveAll(p)
		if f := r.next(t); f.Data[len(f.Data)-1] != 4 {
			t.Errorf("% x came", f.Data)
		}
		must(t, p.Close())
		if len(r.frames) > 0 {
			t.Errorf("%d more came", len(r.frames))
		}
		must(t, p.Mute())
		must(t, p.Unmute())
	})
}

// TestDownAndUp takes the interface down under an open port, and up again.
func TestDownAndUp(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		r := receiveAll(p)
		raw := w.rawSocket(t)
		for range 3 {
			w.setLink(t, netlink.LinkSetDown)
			awaitLink(t, p, false)
			frame := eth.Ethernet(peerMAC, ourMAC, experimental, eth.Payload(100))
			send(t, p.Tx(0), packet.TxFrame{Bufs: [][]byte{frame}})
			w.setLink(t, netlink.LinkSetUp)
			awaitLink(t, p, true)
			must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, experimental, eth.Payload(100)),
				0))
			r.next(t)
			frame[len(frame)-1] = 0xee
			send(t, p.Tx(0), packet.TxFrame{Bufs: [][]byte{frame}})
			for got := nextFrom(t, raw, ourMAC); !bytes.Equal(got, frame); {
				got = nextFrom(t, raw, ourMAC)
			}
		}
		if p.Err() != nil {
			t.Error(p.Err())
		}
	})
}

// TestInterfaceDeleted removes the interface under a port that waits.
func TestInterfaceDeleted(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		r := receiveAll(p)
		w.setLink(t, netlink.LinkDel)
		for range r.queues {
			select {
			case err := <-r.ended:
				if !errors.Is(err, packet.ErrGone) {
					t.Errorf("Wait: %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("nobody noticed")
			}
		}
		if err := p.Err(); !errors.Is(err, packet.ErrGone) || p.LinkUp() {
			t.Errorf("%v, link up %v", err, p.LinkUp())
		}
		q := p.Tx(0)
		q.Lock()
		defer q.Unlock()
		if err := q.Post(&packet.TxFrame{Bufs: [][]byte{make([]byte, 60)}}); !errors.Is(err,
			packet.ErrClosed) {
			t.Errorf("Post: %v", err)
		}
	})
}

// TestWake ends a Wait, also one that comes later.
func TestWake(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		q := p.Rx(0)
		for range 3 {
			q.Wake()
			must(t, q.Wait())
			ended := make(chan error)
			go func() { ended <- q.Wait() }()
			q.Wake()
			must(t, <-ended)
		}
	})
}

// TestCloseUnderTraffic closes a port in the middle of both directions, several times at once.
func TestCloseUnderTraffic(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		raw := w.rawSocket(t)
		for range 3 {
			p := open(packet.Config{})
			r := receiveAll(p)
			sender := make(chan error)
			go func() {
				frame := packet.TxFrame{Bufs: [][]byte{eth.Ethernet(peerMAC, ourMAC, experimental,
					eth.Payload(100))}}
				for q := p.Tx(0); ; {
					q.Lock()
					err := q.Post(&frame)
					q.Flush()
					q.Unlock()
					if err != nil && !errors.Is(err, packet.ErrFull) {
						sender <- err
						return
					}
				}
			}()
			for range 100 {
				must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, experimental,
					eth.Payload(100)), 0))
			}
			closed := make(chan error)
			for range 3 {
				go func() { closed <- p.Close() }()
			}
			for range 3 {
				must(t, <-closed)
			}
			for range r.queues {
				if err := <-r.ended; !errors.Is(err, packet.ErrClosed) {
					t.Errorf("a receiver ended with %v", err)
				}
			}
			if err := <-sender; !errors.Is(err, packet.ErrClosed) {
				t.Errorf("the sender ended with %v", err)
			}
			p.Stats()
			p.Rx(0).Wake()
			if p.Rx(0).Receive(make([]packet.Frame, 1)) != 0 ||
				!errors.Is(p.Rx(0).Wait(), packet.ErrClosed) {
				t.Errorf("a closed port: %v", p.Err())
			}
		}
	})
}

// TestCloseWithFrames closes a port while a queue's owner has frames: they stay as they were until
// the owner's next Receive or Wait.
func TestCloseWithFrames(t *testing.T) {
	for name, end := range map[string]func(packet.Receiver) error{
		"Receive": func(q packet.Receiver) error {
			if q.Receive(nil) != 0 {
				return errors.New("frames of a closed port")
			}
			return packet.ErrClosed
		},
		"Wait": packet.Receiver.Wait,
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, w *world, open opener) {
				p := open(packet.Config{})
				raw := w.rawSocket(t)
				sent := eth.Ethernet(ourMAC, peerMAC, experimental, eth.Payload(100))
				must(t, unix.Send(raw, sent, 0))
				q := p.Rx(0)
				var batch [1]packet.Frame
				for q.Receive(batch[:]) == 0 || isChatter(batch[0].Data) {
					must(t, q.Wait())
				}
				must(t, p.Close())
				if got := batch[0].Data; !bytes.Equal(got, sent) {
					t.Errorf("% x after Close, sent % x", got, sent)
				}
				if err := end(q); !errors.Is(err, packet.ErrClosed) {
					t.Errorf("the end: %v", err)
				}
				ring, ok := q.(*RxQueue)
				if ok && (ring.socket.memory.Len() != 0 || ring.socket.rx.mapped != nil) {
					t.Error("the memory of a closed queue is still mapped")
				}
			})
		})
	}
}

// TestGroups: of groups those come that were asked for, and broadcast.
func TestGroups(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		p := open(packet.Config{})
		r := receiveAll(p)
		raw := w.rawSocket(t)
		group := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0x51}
		must(t, p.SetGroups([]net.HardwareAddr{group}))
		for i, dst := range []net.HardwareAddr{{0x33, 0x33, 0, 0, 0, 0x52}, group,
			{255, 255, 255, 255, 255, 255}} {
			must(t, unix.Send(raw, append(eth.Ethernet(dst, peerMAC, experimental, eth.Payload(50)),
				byte(i)), 0))
		}
		for i := 1; i < 3; i++ {
			if f := r.next(t); f.Data[len(f.Data)-1] != byte(i) {
				t.Errorf("% x came, not %d", f.Data, i)
			}
		}
	})
}

// TestPorts: on the host's MAC those frames come that are for our ports, as they change.
func TestPorts(t *testing.T) {
	eachKind(t, func(t *testing.T, w *world, open opener) {
		must(t, w.ours.Do(func() error {
			link, err := netlink.LinkByName(ifname)
			if err != nil {
				return err
			}
			return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{
				IP: ourIP.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}})
		}))
		p := open(packet.Config{Host: true})
		r := receiveAll(p)
		raw := w.rawSocket(t)
		mac := slices.Clone(netdev)
		expect := func(step string, ours ...uint16) {
			t.Helper()
			before := p.Stats()
			for _, port := range []uint16{79, 80, 81, 8255, 8256, 8300, 8511, 8512, 8600} {
				for _, a := range [][2]netip.Addr{{peerIP.Addr(), ourIP.Addr()},
					{peerIPv6.Addr(), ourIPv6.Addr()}} {
					must(t, unix.Send(raw, ipFrame(mac, a[0], a[1], protoTCP,
						eth.TCP(5000, port, 2, nil)), 0))
				}
				must(t, unix.Send(raw, ipFrame(mac, peerIP.Addr(), ourIP.Addr(), protoUDP,
					eth.UDP(5000, port, nil)), 0))
			}
			var want, got []string
			for _, port := range ours {
				want = append(want, fmt.Sprint(ourIP.Addr(), port),
					fmt.Sprint(ourIPv6.Addr(), port))
			}
			for range want {
				f := r.next(t).Data
				if f[ethLen]>>4 == 4 {
					got = append(got, fmt.Sprint(netip.AddrFrom4([4]byte(f[atDestination4:])),
						binary.BigEndian.Uint16(f[ethLen+ipv4Len+2:])))
				} else {
					got = append(got, fmt.Sprint(netip.AddrFrom16([16]byte(f[atDestination6:])),
						binary.BigEndian.Uint16(f[ethLen+ipv6Len+2:])))
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) || len(r.frames) > 0 {
				t.Errorf("%s: got %q, want %q, and %d more", step, got, want, len(r.frames))
			}
			if st := p.Stats(); st.XDP != nil &&
				st.Rx[0].Frames-before.Rx[0].Frames != uint64(len(want)) {
				t.Errorf("%s: %d frames came by AF_XDP, not %d", step,
					st.Rx[0].Frames-before.Rx[0].Frames, len(want))
			}
		}
		tcpPorts := func(first, last uint16) []packet.Ports {
			return []packet.Ports{{Addr: ourIP.Addr(), First: first, Last: last},
				{Addr: ourIPv6.Addr(), First: first, Last: last}}
		}
		expect("none")
		must(t, p.SetPorts(slices.Concat(tcpPorts(80, 80), tcpPorts(8256, 8511))))
		expect("a block", 80, 8256, 8300, 8511)
		must(t, p.ChangePorts(tcpPorts(81, 81), tcpPorts(80, 80)))
		expect("changed", 81, 8256, 8300, 8511)
		must(t, p.SetPorts(tcpPorts(8300, 8600)))
		expect("a block that begins elsewhere", 8300, 8511, 8512, 8600)
		other := net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
		w.setLink(t, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, other) })
		must(t, p.SetMAC(other))
		mac = other
		expect("another MAC", 8300, 8511, 8512, 8600)
		must(t, p.Close())
		must(t, p.SetPorts(nil))
		must(t, p.ChangePorts(tcpPorts(1, 1), nil))
	})
}
