package dv_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic"
)

// Who gets which frame: ours to us, copies of broadcast and multicast to both,
// Linux' to Linux, a stranger's to nobody.
func TestSlice(t *testing.T) {
	for _, c := range []struct {
		name         string
		cfg          dv.Config
		dst          net.HardwareAddr
		ours, theirs int
	}{
		{"our MAC", dv.Config{}, ourMAC, 1, 0},
		{"netdev's MAC", dv.Config{}, netdevMAC, 0, 1},
		{"third MAC", dv.Config{}, otherMAC, 0, 0},
		{"broadcast", dv.Config{}, broadcast, 1, 1},
		{"IPv6 multicast", dv.Config{}, net.HardwareAddr{0x33, 0x33, 0xff, 1, 2, 3}, 1, 1},
		{"IPv4 multicast", dv.Config{}, net.HardwareAddr{0x01, 0x00, 0x5e, 0x7f, 2, 3}, 1, 1},
		{"other multicast", dv.Config{}, net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}, 0, 1},
		{"third MAC, promiscuous", dv.Config{Promiscuous: true}, otherMAC, 1, 0},
		{"netdev's MAC, promiscuous", dv.Config{Promiscuous: true}, netdevMAC, 1, 0},
		{"broadcast, promiscuous", dv.Config{Promiscuous: true}, broadcast, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, queues := range []int{1, 4} {
				c.cfg.RxQueues = queues
				s, d := usual(t, c.cfg)
				s.wire.send(t, frame(c.dst, peerMAC, 0x0806, 60))
				got := 0
				for i := range queues {
					got += len(poll(d.Rx(i)))
				}
				if theirs := len(s.netdev.take()); got != c.ours || theirs != c.theirs {
					t.Errorf("%d queues: %d to us and %d to the netdev, want %d and %d", queues, got, theirs, c.ours, c.theirs)
				}
			}
		})
	}
}

// What we send goes to the wire, and broadcasts do not come back to us.
func TestOwnBroadcast(t *testing.T) {
	s, d := usual(t, dv.Config{})
	if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{frame(broadcast, ourMAC, 0x0806, 60)}}); err != nil {
		t.Fatal(err)
	}
	d.Tx(0).Flush()
	if n := len(s.wire.take()); n != 1 {
		t.Errorf("%d frames on the wire", n)
	}
	if n := len(poll(d.Rx(0))); n != 0 {
		t.Errorf("%d of our own broadcasts came back", n)
	}
}

// packet is an IP packet of proto with right checksums, to our MAC.
func packet(src, dst netip.AddrPort, proto uint8, payload int) []byte {
	l4 := make([]byte, payload+map[uint8]int{6: 20, 17: 8}[proto])
	for i := range l4 {
		l4[i] = byte(i * 3)
	}
	sumAt := -1
	if proto == 6 || proto == 17 {
		binary.BigEndian.PutUint16(l4, src.Port())
		binary.BigEndian.PutUint16(l4[2:], dst.Port())
	}
	switch proto {
	case 6:
		l4[12], l4[13], sumAt = 0x50, 0x10, 16
	case 17:
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
		sumAt = 6
	}
	s, d := src.Addr().AsSlice(), dst.Addr().AsSlice()
	if sumAt >= 0 {
		l4[sumAt], l4[sumAt+1] = 0, 0
		pseudo := append(append(bytes.Clone(s), d...), 0, proto, byte(len(l4)>>8), byte(len(l4)))
		binary.BigEndian.PutUint16(l4[sumAt:], ^checksum(append(pseudo, l4...)))
	}
	return append(ipHeader(s, d, proto, len(l4)), l4...)
}

// ipHeader is an Ethernet header to our MAC and an IPv4 or IPv6 one.
func ipHeader(src, dst []byte, proto uint8, n int) []byte {
	h := append(bytes.Clone(ourMAC), peerMAC...)
	if len(src) == 4 {
		ip := []byte{0x45, 0, byte((n + 20) >> 8), byte(n + 20), 0, 1, 0, 0, 64, proto, 0, 0}
		ip = append(append(ip, src...), dst...)
		binary.BigEndian.PutUint16(ip[10:], ^checksum(ip))
		return append(append(h, 0x08, 0x00), ip...)
	}
	ip := []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), proto, 64}
	return append(append(append(h, 0x86, 0xdd), append(ip, src...)...), dst...)
}

// checksum is the ones' complement sum of b.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Flows of every class spread over the queues, each to the one that QueueFor
// says, with the hash that it was computed from; and with the default key the
// way back has the same queue.
func TestRSS(t *testing.T) {
	for name, key := range map[string]dv.RSSKey{"symmetric": {}, "microsoft": dv.MicrosoftRSSKey()} {
		t.Run(name, func(t *testing.T) {
			s, d := usual(t, dv.Config{RxQueues: 4, RSSKey: key})
			used := map[string]map[int]bool{}
			for i := range 64 {
				for class, f := range flows(i) {
					s.wire.send(t, packet(f.Src, f.Dst, f.Proto, 30))
					queue := onlyQueue(t, d, class)
					if want := d.QueueFor(f); queue != want {
						t.Fatalf("%s flow %d came to queue %d, QueueFor says %d", class, i, queue, want)
					}
					back := d.QueueFor(dv.Flow{Proto: f.Proto, Src: f.Dst, Dst: f.Src})
					if name == "symmetric" && back != queue {
						t.Fatalf("%s flow %d: queue %d, its reverse %d", class, i, queue, back)
					}
					if used[class] == nil {
						used[class] = map[int]bool{}
					}
					used[class][queue] = true
				}
			}
			for class, queues := range used {
				if len(queues) != 4 {
					t.Errorf("%s: only %d of 4 queues used", class, len(queues))
				}
			}
		})
	}
}

// flows is the i'th flow of each class.
func flows(i int) map[string]dv.Flow {
	v4 := func(host int, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(host)}), uint16(port))
	}
	v6 := func(host int, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(host)}), uint16(port))
	}
	return map[string]dv.Flow{
		"TCP over IPv4": {Proto: 6, Src: v4(7, 30000+i), Dst: v4(1, 80)},
		"UDP over IPv4": {Proto: 17, Src: v4(7, 40000+i), Dst: v4(1, 53)},
		"TCP over IPv6": {Proto: 6, Src: v6(7, 30000+i), Dst: v6(1, 80)},
		"UDP over IPv6": {Proto: 17, Src: v6(7, 40000+i), Dst: v6(1, 53)},
		"ICMP":          {Proto: 1, Src: v4(7+i, 0), Dst: v4(1, 0)},
		"ICMPv6":        {Proto: 58, Src: v6(7+i, 0), Dst: v6(1, 0)},
	}
}

// onlyQueue is the queue that the one frame under way came to.
func onlyQueue(t *testing.T, d *dv.Device, what string) int {
	t.Helper()
	queue := -1
	for i := range d.NumRx() {
		for _, p := range poll(d.Rx(i)) {
			if queue >= 0 {
				t.Fatalf("%s: more than one frame", what)
			}
			if queue = i; p.Flags&dv.RxHash == 0 {
				t.Fatalf("%s: no hash", what)
			}
		}
	}
	if queue < 0 {
		t.Fatalf("%s: no frame", what)
	}
	return queue
}

// The NIC's verdict of right frames, wrong ones and those it cannot judge.
func TestRxVerdicts(t *testing.T) {
	f := flows(0)
	tcp, udp6 := f["TCP over IPv4"], f["UDP over IPv6"]
	good := packet(tcp.Src, tcp.Dst, 6, 100)
	badTCP, badIP, fragment := bytes.Clone(good), bytes.Clone(good), bytes.Clone(good)
	badTCP[60] ^= 1
	badIP[22] ^= 1 // TTL
	fragment[20] |= 0x20
	binary.BigEndian.PutUint16(fragment[24:], 0)
	binary.BigEndian.PutUint16(fragment[24:], ^checksum(fragment[14:34]))
	s, d := usual(t, dv.Config{})
	for _, c := range []struct {
		name  string
		frame []byte
		want  dv.RxFlags
	}{
		{"right", good, dv.RxIPv4 | dv.RxTCP | dv.RxL3OK | dv.RxL4OK},
		{"wrong TCP checksum", badTCP, dv.RxIPv4 | dv.RxTCP | dv.RxL3OK},
		{"wrong header checksum", badIP, dv.RxIPv4 | dv.RxTCP},
		{"fragment", fragment, dv.RxIPv4 | dv.RxFragment | dv.RxL3OK},
		{"right UDP over IPv6", packet(udp6.Src, udp6.Dst, 17, 33), dv.RxIPv6 | dv.RxUDP | dv.RxL3OK | dv.RxL4OK},
		{"ARP", frame(ourMAC, peerMAC, 0x0806, 60), 0},
	} {
		s.wire.send(t, c.frame)
		got := poll(d.Rx(0))
		if len(got) != 1 || !bytes.Equal(got[0].Data, c.frame) {
			t.Errorf("%s: %d frames", c.name, len(got))
			continue
		}
		if flags := got[0].Flags &^ dv.RxHash; flags != c.want {
			t.Errorf("%s: flags %09b, want %09b", c.name, flags, c.want)
		}
	}
}

// Checksums asked for are right on the wire, whatever stood in their place.
func TestTxChecksums(t *testing.T) {
	s, d := usual(t, dv.Config{})
	for class, f := range flows(3) {
		for _, payload := range []int{0, 7, 64, 900} {
			want := packet(f.Src, f.Dst, f.Proto, payload)
			copy(want, peerMAC)
			sent := bytes.Clone(want)
			if f.Src.Addr().Is4() {
				sent[24], sent[25] = 0xde, 0xad
			}
			if at := map[uint8]int{6: 16, 17: 6}[f.Proto]; at > 0 {
				at += map[bool]int{true: 34, false: 54}[f.Src.Addr().Is4()]
				sent[at], sent[at+1] = 0xbe, 0xef
			}
			if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{sent}, Flags: dv.TxL3Csum | dv.TxL4Csum}); err != nil {
				t.Fatal(err)
			}
			d.Tx(0).Flush()
			got := s.wire.take()
			if len(got) != 1 || !bytes.Equal(got[0][:len(want)], want) {
				t.Errorf("%s with %d bytes: %d frames, or wrong ones", class, payload, len(got))
			}
		}
	}
}

// A segmented packet arrives as its segments: right headers, all the bytes.
func TestLSO(t *testing.T) {
	for class, f := range map[string]dv.Flow{"IPv4": flows(1)["TCP over IPv4"], "IPv6": flows(1)["TCP over IPv6"]} {
		for _, payload := range []int{1461, 2920, 30001, 65000} {
			for _, tag := range []dv.TxFlags{0, dv.TxVLAN} {
				t.Run(fmt.Sprintf("%s %d bytes flags %d", class, payload, tag), func(t *testing.T) {
					s, d := usual(t, dv.Config{})
					all := packet(f.Src, f.Dst, 6, payload)
					copy(all, peerMAC)
					header := len(all) - payload
					all[header-20+13] |= 0x09 // PSH, FIN
					err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{all[:header], all[header : 5000%len(all)], all[5000%len(all):]},
						HdrLen: header, MSS: 1440, Flags: tag, VLAN: 0x0123})
					if 5000%len(all) < header {
						t.Fatal("bad split")
					}
					if err != nil {
						t.Fatal(err)
					}
					d.Tx(0).Flush()
					checkSegments(t, s.wire.take(), all, header, 1440, tag)
					if n := d.Tx(0).Reclaim(); n != 1 || d.Tx(0).Stats().LSO != 1 {
						t.Errorf("%d packets done, stats %+v", n, d.Tx(0).Stats())
					}
				})
			}
		}
	}
}

func checkSegments(t *testing.T, got [][]byte, all []byte, header, mss int, tag dv.TxFlags) {
	t.Helper()
	payload := all[header:]
	want := (len(payload) + mss - 1) / mss
	if len(got) != want {
		t.Fatalf("%d segments, want %d", len(got), want)
	}
	var whole []byte
	for i, g := range got {
		if tag != 0 {
			if !bytes.Equal(g[12:16], []byte{0x81, 0x00, 0x01, 0x23}) {
				t.Fatalf("segment %d: tag %x", i, g[12:16])
			}
			g = append(bytes.Clone(g[:12]), g[16:]...)
		}
		tcp := header - 20
		if seq, first := binary.BigEndian.Uint32(g[tcp+4:]), binary.BigEndian.Uint32(all[tcp+4:]); seq != first+uint32(i*mss) {
			t.Errorf("segment %d: sequence %d, want %d", i, seq, first+uint32(i*mss))
		}
		if last := i == want-1; (g[tcp+13]&0x09 != 0) != last {
			t.Errorf("segment %d: flags %#x", i, g[tcp+13])
		}
		if !checksumsRight(g, tcp) {
			t.Errorf("segment %d: wrong checksum", i)
		}
		whole = append(whole, g[header:]...)
	}
	if !bytes.Equal(whole, payload) {
		t.Error("the payload differs")
	}
}

// checksumsRight verifies a TCP frame whose TCP header is at offset tcp.
func checksumsRight(g []byte, tcp int) bool {
	addrs := g[26:34]
	if tcp == 54 {
		addrs = g[22:54]
	} else if checksum(g[14:34]) != 0xffff {
		return false
	}
	n := len(g) - tcp
	pseudo := append(bytes.Clone(addrs), 0, 6, byte(n>>8), byte(n))
	return checksum(append(pseudo, g[tcp:]...)) == 0xffff
}

// A tag is put into frames of either kind, and taken out of received ones.
func TestVLAN(t *testing.T) {
	s, d := usual(t, dv.Config{StripVLAN: true})
	for _, n := range []int{60, 200, 1514} {
		f := frame(peerMAC, ourMAC, 0x88b5, n)
		if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{f}, Flags: dv.TxVLAN, VLAN: 0x6064}); err != nil {
			t.Fatal(err)
		}
		d.Tx(0).Flush()
		want := append(append(bytes.Clone(f[:12]), 0x81, 0x00, 0x60, 0x64), f[12:]...)
		if got := s.wire.take(); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("%d bytes: sent %x", n, got)
		}
		copy(want, ourMAC)
		s.wire.send(t, want)
		got := poll(d.Rx(0))
		if len(got) != 1 || got[0].Flags&dv.RxVLAN == 0 || got[0].VLAN != 0x6064 || len(got[0].Data) != n || !bytes.Equal(got[0].Data[12:], f[12:]) {
			t.Errorf("%d bytes: received %+v", n, got)
		}
	}
}

// Frames sent on without copying: what came in on one NIC leaves by another,
// by any of its queues, and every frame is back in the end.
func TestCrossConnect(t *testing.T) {
	s, d := usual(t, dv.Config{RxQueueSize: 64, TxQueueSize: 64, SpareFrames: 32})
	rx, tx := d.Rx(0), d.Tx(0)
	pkts := make([]dv.Packet, 16)
	for i := range 500 {
		in := frame(ourMAC, peerMAC, 0x88b5, 60+i)
		s.wire.send(t, in)
		n := rx.Poll(pkts)
		for j := range n {
			p := &pkts[j]
			copy(p.Data, otherMAC)
			if err := tx.PostFrame(p.Frame, 0, len(p.Data), 0); err != nil {
				t.Fatal(err)
			}
			p.Frame = dv.NoFrame
		}
		rx.Release(pkts[:n])
		tx.Flush()
		tx.Reclaim()
		copy(in, otherMAC)
		if got := s.wire.take(); len(got) != 1 || !bytes.Equal(got[0], in) {
			t.Fatalf("frame %d: %d frames left", i, len(got))
		}
	}
	rx.Refill()
	if s := tx.Stats(); s.ZeroCopy != 500 || s.Inline != 0 {
		t.Errorf("stats %+v", s)
	}
	if free := d.Pool().Free(); free != 32 {
		t.Errorf("%d frames in the pool, want the 32 spare ones", free)
	}
}

// Frames that nobody polls fill the ring and are then dropped and counted by
// the NIC; reception goes on when they are released.
func TestOutOfBuffer(t *testing.T) {
	s, d := usual(t, dv.Config{RxQueueSize: 64, SpareFrames: 1})
	f := frame(ourMAC, peerMAC, 0x88b5, 100)
	for range 100 {
		s.wire.send(t, f)
	}
	if n := s.nic.Counters().Drops.OutOfBuffer; n != 36 {
		t.Errorf("%d dropped, want 36", n)
	}
	if n := len(poll(d.Rx(0))); n != 64 {
		t.Errorf("%d received, want 64", n)
	}
	if st := d.Rx(0).Stats(); st.Stalls != 1 || st.Packets != 64 || st.Bytes != 6400 {
		t.Errorf("stats %+v", st)
	}
	s.wire.send(t, f)
	if n := len(poll(d.Rx(0))); n != 1 {
		t.Errorf("%d received after it, want 1", n)
	}
}

// A full send ring refuses, and takes again what the NIC has completed.
func TestRingFull(t *testing.T) {
	s, d := usual(t, dv.Config{TxQueueSize: 64})
	q := d.Tx(0)
	p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 60)}}
	n := 0
	for ; ; n++ {
		if err := q.Post(&p); err != nil {
			if !errors.Is(err, dv.ErrRingFull) {
				t.Fatal(err)
			}
			break
		}
	}
	q.Flush()
	if got := len(s.wire.take()); n != 32 || got != 32 || q.Free() != 0 {
		t.Errorf("%d posted, %d sent, %d blocks free", n, got, q.Free())
	}
	if done := q.Reclaim(); done != 32 || q.Free() != 64 || q.Stats().Stalls != 1 {
		t.Errorf("%d done, %d blocks free, stats %+v", done, q.Free(), q.Stats())
	}
}

// What the device counts is what the NIC counts.
func TestStatsAgree(t *testing.T) {
	s, d := usual(t, dv.Config{RxQueues: 2, TxQueues: 2})
	for i := range 50 {
		f := flows(i)["UDP over IPv4"]
		s.wire.send(t, packet(f.Src, f.Dst, 17, i))
		d.Tx(i % 2).Post(&dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 60+i)}})
		d.Tx(i % 2).Flush()
	}
	for i := range 2 {
		poll(d.Rx(i))
		d.Tx(i).Reclaim()
	}
	var sum struct{ rx, rxBytes, tx, txBytes, doorbells uint64 }
	for _, q := range d.Stats().Rx {
		sum.rx, sum.rxBytes = sum.rx+q.Packets, sum.rxBytes+q.Bytes
	}
	for _, q := range d.Stats().Tx {
		sum.tx, sum.txBytes, sum.doorbells = sum.tx+q.Packets, sum.txBytes+q.Bytes, sum.doorbells+q.Doorbells
	}
	c := s.nic.Counters()
	if slice := c.Slice; sum.rx != slice.RxPackets || sum.rxBytes != slice.RxBytes || sum.tx != slice.TxPackets || sum.txBytes != slice.TxBytes || sum.doorbells != c.Doorbells {
		t.Errorf("device %+v, NIC %+v", sum, slice)
	}
	if !d.Stats().LinkUp {
		t.Error("link down")
	}
}

// Two NICs on one cable, both driven by us.
func TestPingPong(t *testing.T) {
	a, b := simnic.Pair()
	var devices []*dv.Device
	for i, w := range []simnic.Wire{a, b} {
		nic, err := simnic.New(simnic.Config{Name: fmt.Sprintf("mlx5_sim%d", i), Seed: uint64(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer nic.Close()
		if err := nic.ConnectWire(w); err != nil {
			t.Fatal(err)
		}
		d, err := dv.Open(t.Context(), dv.Config{Kernel: nic.OpenKernel, Facts: dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC()}})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		devices = append(devices, d)
	}
	for i := range 1000 {
		from, to := devices[i%2], devices[1-i%2]
		f := frame(to.MAC(), from.MAC(), 0x88b5, 60+i)
		if err := from.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
			t.Fatal(err)
		}
		from.Tx(0).Flush()
		from.Tx(0).Reclaim()
		if got := poll(to.Rx(0)); len(got) != 1 || !bytes.Equal(got[0].Data, f) {
			t.Fatalf("round %d: %d frames", i, len(got))
		}
	}
}
