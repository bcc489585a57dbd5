package rdma

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// TestJumbo sends segments and datagrams of 9000 bytes, which arrive in several buffers of the
// ring, or in one.
func TestJumbo(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		dv   dv.Config
		long bool
	}{
		{"several buffers", Options{}, dv.Config{}, true},
		{"several buffers, nothing merged", Options{NoMerge: true, NoSegmentation: true},
			dv.Config{}, true},
		{"several buffers, uncompressed", Options{},
			dv.Config{Tuning: dv.Tuning{NoCompression: true}}, true},
		{"one buffer", Options{}, dv.Config{Tuning: dv.Tuning{NoMultiSegment: true}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.dv.Rings.DelayDrop = true
			a, b := pair(t, setup{opts: tc.opts, dv: tc.dv, mtu: 9000})
			for i, address := range []netip.Addr{a.v4, a.v6} {
				go echo(a.listen(t, address, 80))
				if err := exchange(b.dial(t, address, 80), data(1<<20, uint64(i))); err != nil {
					t.Errorf("%v: %v", address, err)
				}
			}
			in := a.udp(t, netip.AddrPortFrom(a.v4, 53), netip.AddrPort{})
			out := b.udp(t, netip.AddrPort{}, netip.AddrPortFrom(a.v4, 53))
			in.SetReadDeadline(time.Now().Add(time.Minute))
			want, got := data(8972, 9), make([]byte, 9000)
			if _, err := out.Write(want); err != nil {
				t.Fatal(err)
			}
			if n, err := in.Read(got); err != nil || !bytes.Equal(got[:n], want) {
				t.Errorf("datagram of %d bytes: %d came, %v", len(want), n, err)
			}
			if n := a.dev.Stats().Rx[0].Segmented; (n > 0) != tc.long {
				t.Errorf("%d frames in several buffers", n)
			}
		})
	}
}

// recordingStack is a stack that keeps the packets it receives.
type recordingStack struct {
	sink
	packets [][]byte
}

func (k *recordingStack) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber,
	pkt *gstack.PacketBuffer) {
	k.packets = append(k.packets, pkt.Data().AsRange().ToSlice())
}

// TestJoined: a long frame is verified, its tag and padding are removed, and it is merged or
// delivered alone like any other.
func TestJoined(t *testing.T) {
	_, devs := devices(t, setup{mtu: 9000})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	k := &recordingStack{}
	w := e.lone(&attachment{dispatcher: k})
	frame := func(seq uint32, payload, pad int) tcpFrame {
		f := segment(0)
		f.Dst, f.Src = "\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02"
		f.Seq, f.ID, f.Pad, f.Payload = f.Seq+seq, f.ID+uint16(seq/3000), pad,
			data(payload, uint64(seq))
		return f
	}
	q := devs[1].Tx(0)
	var want [][]byte
	send := func(flags dv.TxFlags, fs ...tcpFrame) {
		ip := fs[0].Bytes()
		for i, f := range fs {
			if err := q.Post(&dv.TxPacket{Bufs: [][]byte{f.Bytes()}, Flags: flags,
				VLAN: 5 << 13}); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				ip = append(ip, f.Payload...)
			}
		}
		want = append(want, ip[hdr.EthLen:len(ip)-fs[0].Pad])
	}
	send(0, frame(0, 3000, 0), frame(3000, 3000, 0), frame(6000, 3000, 0)) // one run
	q.Flush()
	for w.poll() {
	}
	send(dv.TxVLAN, frame(9000, 6000, 0))
	q.Flush()
	for w.poll() {
	}
	send(0, frame(15000, 4000, 9))
	q.Flush()
	for w.poll() {
	}
	broken := frame(19000, 4000, 0).Bytes()
	broken[4000] ^= 1
	if err := q.Post(&dv.TxPacket{Bufs: [][]byte{broken}}); err != nil {
		t.Fatal(err)
	}
	q.Flush()
	for w.poll() {
	}
	if len(k.packets) != len(want) || w.count.drops[dropBadChecksum].Load() != 1 {
		t.Fatalf("%d packets and %d bad ones, want %d and 1", len(k.packets),
			w.count.drops[dropBadChecksum].Load(), len(want))
	}
	for i, p := range k.packets {
		if head := 0; i == 0 {
			head = 20 // lengths and checksums of the merged one are new
			p, want[0] = p[head:], want[0][head:]
			copy(want[0][16:18], p[16:18])
		}
		if !bytes.Equal(p, want[i]) {
			t.Errorf("packet %d: %d bytes, want %d: %s", i, len(p), len(want[i]),
				firstDifference(p, want[i]))
		}
	}
	if s := devs[0].Stats().Rx[0]; s.Segmented != 6 {
		t.Errorf("%d frames in several buffers, want 6", s.Segmented)
	}
	for i := range w.linear {
		if w.linear[i] != nil {
			t.Fatalf("frame %d was not let go", i)
		}
	}
}

func firstDifference(a, b []byte) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("at %d %#x and %#x", i, a[i], b[i])
		}
	}
	return "in length"
}

// TestLoweredMTU: a connection that began with an MTU of 9000 goes on when it is 1500, and again at
// 9000, without the stack's doing: the NIC cuts its segments.
func TestLoweredMTU(t *testing.T) {
	for _, opts := range []Options{{}, {NoMerge: true}} {
		t.Run(fmt.Sprint("no merge ", opts.NoMerge), func(t *testing.T) {
			a, b := pair(t, setup{opts: opts,
				dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}, mtu: 9000})
			for _, address := range []netip.Addr{a.v4, a.v6} {
				lowerMTU(t, a, b, address)
			}
		})
	}
}

func lowerMTU(t *testing.T, a, b *host, address netip.Addr) {
	go echo(a.listen(t, address, 80))
	c := b.dial(t, address, 80)
	defer c.Close()
	for turn, mtu := range []int{9000, 1500, 9000, 1280, 9000} {
		for _, h := range []*host{a, b} {
			h.dev.SetNetdevMTU(mtu)
			h.ep.FollowMTU()
			if err := h.nic.SetMTU(mtu); err != nil {
				t.Fatal(err)
			}
		}
		want := data(300<<10, uint64(turn))
		go c.Write(want)
		got := make([]byte, len(want))
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v at an MTU of %d: %v", address, mtu, err)
		}
	}
}
