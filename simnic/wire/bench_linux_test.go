package wire

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

func BenchmarkPair(b *testing.B) {
	a, z := Pair()
	defer a.Close()
	defer z.Close()
	if err := z.Start(func([]frame.Frame) {}); err != nil {
		b.Fatal(err)
	}
	frames := make([]frame.Frame, 32)
	for i := range frames {
		frames[i] = numbered(i)
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(frames) {
		_, _ = a.Send(frames)
	}
}

func BenchmarkFaultyPair(b *testing.B) {
	a, z := Pair()
	w := WithFaults(a, FaultConfig{Drop: 0.001})
	defer w.Close()
	defer z.Close()
	if err := z.Start(func([]frame.Frame) {}); err != nil {
		b.Fatal(err)
	}
	frames := make([]frame.Frame, 32)
	for i := range frames {
		frames[i] = numbered(i)
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(frames) {
		_, _ = w.Send(frames)
	}
}

// What it costs to hand the kernel a frame of 1514 bytes, and an unsegmented one
// of 60 KiB. No socket there receives them.
func BenchmarkTAPSend(b *testing.B) {
	for name, n := range map[string]int{"1460": 1460, "60000": 60000} {
		b.Run(name, func(b *testing.B) {
			ns := newNetNS(b)
			tap := ns.openTAP("tap0")
			ns.up("tap0", "")
			hdr, _, l4 := simtest.Header(false, false, 0, n)
			f := frame.Frame{Data: append(hdr, make([]byte, n)...), NeedsCsum: true,
				CsumStart: uint16(l4), CsumOffset: 16}
			if n > 1460 {
				f.GSO, f.HdrLen, f.MSS = frame.GSOTCPv4, uint16(len(hdr)), 1460
			}
			frames := []frame.Frame{f}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tap.Send(frames); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestTAPSendDoesNotAllocate(t *testing.T) {
	need.TUN(t)
	ns := newNetNS(t)
	tap := ns.openTAP("tap0")
	ns.up("tap0", "")
	frames := []frame.Frame{numbered(0)}
	if n := testing.AllocsPerRun(100, func() { _, _ = tap.Send(frames) }); n != 0 {
		t.Errorf("%v allocations per Send", n)
	}
}

// What it costs to be handed a frame by the kernel when no other frame is on its way, and the
// one that sends it.
func BenchmarkTAPReceive(b *testing.B) {
	ns := newNetNS(b)
	tap := ns.openTAP("tap0")
	ns.up("tap0", "")
	linux := ns.openPacket("tap0")
	mark := make([]byte, 200)
	copy(mark, "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x88\xb5")
	got := make(chan struct{}, 16)
	if err := tap.Start(func(frames []frame.Frame) {
		for _, f := range frames {
			if len(f.Data) == len(mark) {
				got <- struct{}{}
			}
		}
	}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := linux.Send([]frame.Frame{{Data: mark}}); err != nil {
			b.Fatal(err)
		}
		<-got
	}
}
