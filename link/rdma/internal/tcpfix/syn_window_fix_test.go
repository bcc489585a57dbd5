package tcpfix

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestSYNWindowEnds: windows are changed in the answer to a repeated SYN only, until something else
// is sent or two minutes are over.
func TestSYNWindowEnds(t *testing.T) {
	const raw = 29184
	syn := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: 99, Flags: header.TCPFlagSyn, TTL: 64}
	synACK := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Ack: 100, Window: raw, TTL: 64,
		Flags: header.TCPFlagSyn | header.TCPFlagAck, Options: []byte{1, 3, 3, 8}}
	clock := faketime.NewManualClock()
	x := newSYNWindowFix(clock)
	receive := func() {
		b := syn.Bytes()
		s := hdr.Received(b, hdrtest.Parse(b), testSeed)
		x.received(&s)
	}
	// sent returns the window of the frame when it has been sent.
	sent := func(change func(*tcpframe.Frame)) uint16 {
		f := synACK
		change(&f)
		b := f.Bytes()
		at := len(b) - len(f.Payload)
		pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: at,
			Payload: buffer.MakeWithData(b[at:])})
		defer pkt.DecRef()
		copy(pkt.LinkHeader().Push(at), b)
		s := hdr.ParseSent(pkt, testSeed)
		x.sent(&s)
		return s.Window()
	}
	same := func(*tcpframe.Frame) {}
	ack := func(f *tcpframe.Frame) { f.Flags, f.Options = header.TCPFlagAck, nil }
	scaled := func(when string, want bool) {
		t.Helper()
		if got := sent(ack); (got == raw>>8) != want {
			t.Errorf("%s: window %d", when, got)
		}
	}
	receive()
	sent(same)
	scaled("one SYN", false)
	receive()
	if got := sent(same); got != raw {
		t.Errorf("the SYN-ACK again has window %d", got)
	}
	scaled("the SYN again", true)
	scaled("and once more", true)
	sent(func(f *tcpframe.Frame) { ack(f); f.Payload = []byte("x") })
	scaled("data has been sent", false)
	receive()
	sent(same)
	receive()
	clock.Advance(synTimeout + time.Second)
	for range synSlots {
		sent(func(f *tcpframe.Frame) { ack(f); f.Ports[1]++ })
	}
	scaled("two minutes later", false)
	if n := x.repeated.Load(); n != 0 {
		t.Errorf("%d repeated SYNs are left", n)
	}
}
