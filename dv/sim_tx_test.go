package dv_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// What we send goes to the wire, and broadcasts do not come back to us.
func TestOwnBroadcast(t *testing.T) {
	s, d := usual(t, dv.Config{})
	if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{frame(broadcast, ourMAC,
		0x0806, 60)}}); err != nil {
		t.Fatal(err)
	}
	d.Tx(0).Flush()
	if n := len(s.wire.drain()); n != 1 {
		t.Errorf("%d frames on the wire", n)
	}
	if n := len(poll(d.Rx(0))); n != 0 {
		t.Errorf("%d of our own broadcasts came back", n)
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
			if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{sent}, Flags: dv.TxL3Csum |
				dv.TxL4Csum}); err != nil {
				t.Fatal(err)
			}
			d.Tx(0).Flush()
			got := s.wire.drain()
			if len(got) != 1 || !bytes.Equal(got[0][:len(want)], want) {
				t.Errorf("%s with %d bytes: %d frames, or wrong ones", class, payload, len(got))
			}
		}
	}
}

// A segmented packet arrives as its segments: right headers, all the bytes.
func TestLSO(t *testing.T) {
	for class, f := range map[string]dv.Flow{"IPv4": flows(1)["TCP over IPv4"],
		"IPv6": flows(1)["TCP over IPv6"]} {
		for _, payload := range []int{1461, 2920, 30001, 65000} {
			for _, tag := range []dv.TxFlags{0, dv.TxVLAN} {
				t.Run(fmt.Sprintf("%s %d bytes flags %d", class, payload, tag), func(t *testing.T) {
					s, d := usual(t, dv.Config{})
					all := packet(f.Src, f.Dst, 6, payload)
					copy(all, peerMAC)
					header := len(all) - payload
					all[header-20+13] |= 0x09 // PSH, FIN
					err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{all[:header],
						all[header : 5000%len(all)], all[5000%len(all):]},
						HdrLen: header, MSS: 1440, Flags: tag, VLAN: 0x0123})
					if 5000%len(all) < header {
						t.Fatal("bad split")
					}
					if err != nil {
						t.Fatal(err)
					}
					d.Tx(0).Flush()
					checkSegments(t, s.wire.drain(), all, header, 1440, tag)
					if n := d.Tx(0).Reclaim(); n != 1 || d.Tx(0).Stats().LSO != 1 {
						t.Errorf("%d packets done, stats %+v", n, d.Tx(0).Stats())
					}
				})
			}
		}
	}
}

// Datagrams that the NIC cuts off arrive with right headers, and the short one behind them, too.
func TestDatagrams(t *testing.T) {
	for class, f := range map[string]dv.Flow{"IPv4": flows(1)["UDP over IPv4"],
		"IPv6": flows(1)["UDP over IPv6"]} {
		for _, payload := range []int{1, 1400, 1401, 2800, 2801, 30000, 65507} {
			for _, tag := range []dv.TxFlags{0, dv.TxVLAN} {
				t.Run(fmt.Sprintf("%s %d bytes flags %d", class, payload, tag), func(t *testing.T) {
					s, d := usual(t, dv.Config{})
					all := packet(f.Src, f.Dst, 17, payload)
					copy(all, peerMAC)
					header := len(all) - payload
					err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{all[:header],
						all[header : header+payload/2], all[header+payload/2:]},
						HdrLen: header, MSS: 1400, UDP: true, Flags: tag, VLAN: 0x0123})
					if err != nil {
						t.Fatal(err)
					}
					d.Tx(0).Flush()
					got := s.wire.drain()
					if want := (payload + 1399) / 1400; len(got) != want {
						t.Fatalf("%d datagrams, want %d", len(got), want)
					}
					var whole []byte
					for i, g := range got {
						size := min(1400, payload-len(whole))
						if tag != 0 {
							if !bytes.Equal(g[12:16], []byte{0x81, 0x00, 0x01, 0x23}) {
								t.Fatalf("datagram %d: tag %x", i, g[12:16])
							}
							g = append(bytes.Clone(g[:12]), g[16:]...)
						}
						want := packet(f.Src, f.Dst, 17, size)
						udp := header - 8
						if n := int(binary.BigEndian.Uint16(g[udp+4:])); n != size+8 {
							t.Errorf("datagram %d: UDP length %d of %d", i, n, size+8)
						}
						if at := header - 48 + 4; class == "IPv6" && !bytes.Equal(g[at:at+2],
							want[at:at+2]) {
							t.Errorf("datagram %d: length %x", i, g[at:at+2])
						}
						if class == "IPv4" && (!bytes.Equal(g[16:18], want[16:18]) ||
							checksum(g[14:34]) != 0xffff) {
							t.Errorf("datagram %d: header %x", i, g[14:34])
						}
						if !udpChecksumRight(g[:header+size], udp) {
							t.Errorf("datagram %d: wrong checksum", i)
						}
						whole = append(whole, g[header:header+size]...)
					}
					if !bytes.Equal(whole, all[header:]) {
						t.Error("the payload differs")
					}
					if v := s.nic.Violations(); len(v) != 0 {
						t.Errorf("what no driver should do: %q", v)
					}
					lso := uint64(0)
					if payload >= 2*1400 {
						lso = 1
					}
					d.Tx(0).Reclaim()
					if n := d.Tx(0).Stats().LSO; n != lso {
						t.Errorf("%d segmented packets, want %d", n, lso)
					}
				})
			}
		}
	}
}

// udpChecksumRight verifies a datagram whose UDP header is at offset udp.
func udpChecksumRight(g []byte, udp int) bool {
	addrs := g[26:34]
	if udp == 54 {
		addrs = g[22:54]
	}
	n := len(g) - udp
	pseudo := append(bytes.Clone(addrs), 0, 17, byte(n>>8), byte(n))
	return checksum(append(pseudo, g[udp:]...)) == 0xffff
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
		if seq, first := binary.BigEndian.Uint32(g[tcp+4:]),
			binary.BigEndian.Uint32(all[tcp+4:]); seq != first+uint32(i*mss) {
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
	s, d := usual(t, dv.Config{Tuning: dv.Tuning{StripVLAN: true}})
	for _, n := range []int{60, 200, 1514} {
		f := frame(peerMAC, ourMAC, 0x88b5, n)
		if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{f}, Flags: dv.TxVLAN,
			VLAN: 0x6064}); err != nil {
			t.Fatal(err)
		}
		d.Tx(0).Flush()
		want := append(append(bytes.Clone(f[:12]), 0x81, 0x00, 0x60, 0x64), f[12:]...)
		if got := s.wire.drain(); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("%d bytes: sent %x", n, got)
		}
		copy(want, ourMAC)
		s.wire.send(t, want)
		got := poll(d.Rx(0))
		if len(got) != 1 || got[0].Flags&dv.RxVLAN == 0 || got[0].VLAN != 0x6064 ||
			len(got[0].Data) != n || !bytes.Equal(got[0].Data[12:], f[12:]) {
			t.Errorf("%d bytes: received %+v", n, got)
		}
	}
}

// Frames sent on without copying: what came in on one NIC leaves by another,
// by any of its queues, and every frame is back in the end.
func TestCrossConnect(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 64, TxQueueSize: 64}},
		Tuning: dv.Tuning{SpareFrames: 32}})
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
		if got := s.wire.drain(); len(got) != 1 || !bytes.Equal(got[0], in) {
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

// A full send ring refuses, and takes again what the NIC has completed.
func TestRingFull(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 64}},
		Tuning: dv.Tuning{NoMultiPacketSend: true}})
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
	if got := len(s.wire.drain()); n != 32 || got != 32 || q.Free() != 0 {
		t.Errorf("%d posted, %d sent, %d blocks free", n, got, q.Free())
	}
	if done := q.Reclaim(); done != 32 || q.Free() != 64 || q.Stats().Stalls != 1 {
		t.Errorf("%d done, %d blocks free, stats %+v", done, q.Free(), q.Stats())
	}
}
