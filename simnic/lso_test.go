package simnic

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// verify checks a packet's lengths and checksums as its receiver would.
func verify(t *testing.T, f []byte) {
	t.Helper()
	p := frame.Parse(f)
	if p.L4At == 0 || p.Truncated || p.End != len(f) {
		t.Fatalf("headers of % x: %+v", f[:60], p)
	}
	if p.L3 == 2 && frame.Sum(f[p.L3At:p.L3At+int(f[p.L3At]&15)*4]) != 0xffff {
		t.Errorf("IP checksum of % x", f[:60])
	}
	if frame.AddSums(frame.Sum(f[p.L4At:]), p.PseudoSum(f, len(f)-p.L4At)) != 0xffff {
		t.Errorf("L4 checksum of % x", f[:80])
	}
	if p.Proto == frame.ProtoUDP && int(be16(f[p.L4At+4:])) != len(f)-p.L4At {
		t.Errorf("UDP length of % x", f[:60])
	}
}

// TestDatagramLength makes the NIC cut 80 bytes into datagrams of 30: each has the UDP length of
// the WQE's header, the short one behind them, too, and a checksum over that.
func TestDatagramLength(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		want   [3]string
	}{
		"IPv4": {"020000000002 020000000001 0800 4500dead ffff4000 40110000 0a000001 0a000002" +
			"9c400035 0026beef", [3]string{
			"02000000000202000000000108004500003affff4000401126b10a0000010a000002" +
				"9c4000350026" + "5dd0030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ce",
			"02000000000202000000000108004500003a00004000401126b10a0000010a000002" +
				"9c4000350026" + "0f81d5dce3eaf1f8ff060d141b222930373e454c535a61686f767d848b9299a0",
			"02000000000202000000000108004500003000014000401126ba0a0000010a000002" +
				"9c4000350026" + "4deca7aeb5bcc3cad1d8dfe6edf4fb020910171e252c"}},
		"IPv6": {"020000000002 020000000001 86dd 60000000 0000 1140" +
			"fd000000000000000000000000000001 fd000000000000000000000000000002 9c400035 0026beef",
			[3]string{
				"02000000000202000000000186dd6000000000261140" +
					"fd000000000000000000000000000001fd0000000000000000000000000000029c4000350026" +
					"77ce030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ce",
				"02000000000202000000000186dd6000000000261140" +
					"fd000000000000000000000000000001fd0000000000000000000000000000029c4000350026" +
					"297fd5dce3eaf1f8ff060d141b222930373e454c535a61686f767d848b9299a0",
				"02000000000202000000000186dd60000000001c1140" +
					"fd000000000000000000000000000001fd0000000000000000000000000000029c4000350026" +
					"67eaa7aeb5bcc3cad1d8dfe6edf4fb020910171e252c"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSendRig(t, Config{}, 0)
			r.wire.can = frame.OffloadCsum | frame.OffloadUSO
			for i := range r.buf[:80] {
				r.buf[i] = byte(7*i + 3)
			}
			header := unhex(c.header)
			e := append(ethSeg(0xc0, 30, uint16(len(header)))[:14], header...)
			for len(e)%16 != 0 {
				e = append(e, 0)
			}
			w := concat(ctrl(0x0e, 0), e, seg(80, r.key.Key(), r.addr))
			w[7] = byte(len(w) / 16)
			r.sq.post(w)
			r.sq.doorbell()
			if cqe := r.cq.mustPoll(t); cqe[0x3f]>>4 != 0 {
				t.Fatalf("completion %x", cqe)
			}
			got := r.wire.drain()
			if len(got) != len(c.want) {
				t.Fatalf("%d frames", len(got))
			}
			for i, f := range got {
				expect(t, "packet", f.Data, unhex(c.want[i]))
			}
			clean(t, r.nic)
		})
	}
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// TestLSOKinds sends the same WQE over a wire that takes unsegmented frames, which
// the receiving port cuts, and over one that does not: the packets must be the same, correct, and
// carry the payload. Of datagrams a short one has the length of the others.
func TestLSOKinds(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for tags := range 3 {
				for _, total := range []int{1, 1448, 1449, 30000, 30 * 1448, 70000, 140001} {
					testLSOKind(t, v6, udp, tags, total)
				}
			}
		}
	}
}

func testLSOKind(t *testing.T, v6, udp bool, tags, total int) {
	header, _, l4 := simtest.Header(v6, udp, tags, 0)
	copy(header, macTwo[:])
	if udp {
		header = header[:l4+8]
		binary.BigEndian.PutUint16(header[l4+4:], 1448+8)
	} else {
		header = header[:l4+20]
		header[l4+12], header[l4+13] = 5<<4, 0x99 // CWR, ACK, PSH, FIN
	}
	var got [2][][]byte
	for i, can := range []frame.Offload{0, frame.OffloadCsum | frame.OffloadTSO4 |
		frame.OffloadTSO6 | frame.OffloadUSO} {
		r := newSendRig(t, Config{MTU: 2000}, 0)
		big := mem(t, 1<<18)
		rnd := big.Bytes()[:total]
		for j := range rnd {
			rnd[j] = byte(j * j >> 3)
		}
		k := newKey(t, r.nic, big, nil)
		r.wire.can = can
		e := append(ethSeg(0xc0, 1448, uint16(len(header)))[:14], header...)
		for len(e)%16 != 0 {
			e = append(e, 0)
		}
		w := concat(ctrl(0x0e, 0), e)
		for at := 0; at < total; at += 50000 { // segments do not end where packets do
			w = append(w, seg(min(50000, total-at), k.Key(), big.Addr()+uint64(at))...)
		}
		w[7] = byte(len(w) / 16)
		r.sq.post(w)
		r.sq.doorbell()
		if c := r.cq.mustPoll(t); c[0x3f]>>4 != 0 {
			t.Fatalf("completion %x", c)
		}
		got[i] = r.cutByNeighbour(t, can != 0 && total > 1448 && (!udp || total%1448 == 0))
		clean(t, r.nic)
	}
	if len(got[0]) != len(got[1]) || len(got[0]) != (total+1447)/1448 {
		t.Fatalf("v6 %v udp %v tags %d: %d and %d packets of %d bytes", v6, udp, tags,
			len(got[0]), len(got[1]), total)
	}
	var payload []byte
	for i := range got[0] {
		f := got[0][i][:len(header)+min(1448, total-i*1448)] // the rest is padding
		expect(t, "packet", got[1][i][:len(f)], f)
		if udp && len(f) < len(header)+1448 {
			if n := be16(f[l4+4:]); n != 1448+8 {
				t.Errorf("UDP length %d of a short datagram", n)
			}
			binary.BigEndian.PutUint16(f[l4+4:], uint16(len(f)-l4))
			sum := uint32(be16(f[l4+6:])) + 1448 + 8 + (0xffff - uint32(len(f)-l4))
			binary.BigEndian.PutUint16(f[l4+6:], frame.AddSums(uint16(sum>>16), uint16(sum)))
		}
		verify(t, f)
		if !udp {
			last := i == len(got[0])-1
			want := byte(0x10)
			if last {
				want |= 0x09
			}
			if i == 0 {
				want |= 0x80
			}
			if f[l4+13] != want {
				t.Errorf("packet %d of %d has flags %#02x", i, len(got[0]), f[l4+13])
			}
		}
		payload = append(payload, f[len(header):]...)
	}
	for i, b := range payload[:total] {
		if b != byte(i*i>>3) {
			t.Fatalf("payload differs at %d", i)
		}
	}
}

// cutByNeighbour returns the frames sent as the netdev of a neighbour receives them.
func (r *sendRig) cutByNeighbour(t *testing.T, whole bool) (out [][]byte) {
	frames := r.wire.drain()
	if whole && frames[0].GSO == frame.GSONone || !whole && frames[0].GSO != frame.GSONone {
		t.Fatalf("first frame %d bytes, GSO %d", len(frames[0].Data), frames[0].GSO)
	}
	n := newNIC(t, Config{MAC: macTwo[:], MTU: 2000})
	in, out2 := &recorder{}, &recorder{}
	if err := n.ConnectWire(in); err != nil {
		t.Fatal(err)
	}
	if err := n.ConnectNetdev(out2); err != nil {
		t.Fatal(err)
	}
	in.recv(frames)
	for _, f := range out2.drain() {
		out = append(out, f.Data)
	}
	return out
}

// TestNetdevOffloads checks the offloads that the netdev port leaves to the port.
func TestNetdevOffloads(t *testing.T) {
	for _, can := range []frame.Offload{0, frame.OffloadCsum | frame.OffloadTSO4} {
		w := newWorld(t, Config{})
		w.wire.can = can
		whole := tcpSegment(0, 5000, 0x18)
		copy(whole, macThird[:])
		p := frame.Parse(whole)
		p.SeedChecksum(whole)
		before := append([]byte(nil), whole...)
		single := flowFrame(1, 90)
		copy(single, macThird[:])
		p = frame.Parse(single)
		p.SeedChecksum(single)
		w.netdev.recv([]frame.Frame{
			{Data: single, NeedsCsum: true, CsumStart: 34, CsumOffset: 6},
			{Data: whole, NeedsCsum: true, CsumStart: 34, CsumOffset: 16,
				GSO: frame.GSOTCPv4, HdrLen: 14, MSS: 1448},
		})
		if !bytes.Equal(whole, before) {
			t.Error("the caller's frame was changed")
		}
		got := w.wire.drain()
		if can != 0 {
			if len(got) != 2 || got[1].HdrLen != 66 || !got[0].NeedsCsum {
				t.Errorf("%d frames, header %d", len(got), got[1].HdrLen)
			}
			continue
		}
		if len(got) != 5 {
			t.Fatalf("%d frames", len(got))
		}
		var n int
		for _, f := range got {
			verify(t, f.Data)
			n += len(f.Data)
		}
		if c := w.nic.Counters(); c.Netdev.TxPackets != 5 || c.Netdev.TxBytes != uint64(n) ||
			c.Wire.TxBytes != uint64(n) {
			t.Errorf("%d bytes, counters %+v", n, c)
		}
	}
}

// TestManyCutFrames is a batch that does not fit the scratch memory at once.
func TestManyCutFrames(t *testing.T) {
	w := newWorld(t, Config{})
	var batch []frame.Frame
	for i := range 8 {
		f := tcpSegment(i*60000, 60000, 0x10)
		copy(f, macThird[:])
		p := frame.Parse(f)
		p.SeedChecksum(f)
		batch = append(batch, frame.Frame{Data: f, NeedsCsum: true, CsumStart: 34, CsumOffset: 16,
			GSO: frame.GSOTCPv4, HdrLen: 66, MSS: 1000})
	}
	w.netdev.recv(batch)
	got := w.wire.drain()
	if len(got) != 480 {
		t.Fatalf("%d frames", len(got))
	}
	for i, f := range got {
		verify(t, f.Data)
		if seq := binary.BigEndian.Uint32(f.Data[38:]); seq != uint32(1+i*1000) {
			t.Fatalf("frame %d has sequence number %d", i, seq)
		}
	}
}
