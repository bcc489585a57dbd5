package tcpfix

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
)

// TestHandshakeData: after our SYN-ACK, with numbers 99 and 8, come two segments.
func TestHandshakeData(t *testing.T) {
	data := hdrtest.TCPFrame{Src: hdrtest.PeerMAC, Dst: hdrtest.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: 8, Ack: 100, Flags: header.TCPFlagAck, TTL: 64,
		Payload: []byte("data")}
	for _, tc := range []struct {
		name   string
		first  func(*hdrtest.TCPFrame)
		second func(*hdrtest.TCPFrame)
		want   [2]bool
	}{
		{name: "data, and again", want: [2]bool{true, false}},
		{name: "an ACK, then data", first: func(f *hdrtest.TCPFrame) { f.Payload = nil }},
		{name: "of another connection", want: [2]bool{false, true},
			first: func(f *hdrtest.TCPFrame) { f.Ports[0]++ }},
		{name: "behind a gap", want: [2]bool{false, true},
			first: func(f *hdrtest.TCPFrame) { f.Seq++ }},
		{name: "of what was not sent", want: [2]bool{false, true},
			first: func(f *hdrtest.TCPFrame) { f.Ack++ }},
		{name: "a SYN again", want: [2]bool{false, true},
			first: func(f *hdrtest.TCPFrame) { f.Flags, f.Seq = header.TCPFlagSyn, 7 }},
		{name: "a reset", want: [2]bool{false, true},
			first: func(f *hdrtest.TCPFrame) { f.Flags |= header.TCPFlagRst }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newHandshakeData(faketime.NewManualClock())
			x.sent(sentSYNACK(t))
			for i, change := range []func(*hdrtest.TCPFrame){tc.first, tc.second} {
				f := data
				if change != nil {
					change(&f)
				}
				b := f.Bytes()
				s := hdr.Received(b, hdrtest.Parse(b), testSeed)
				if got := x.received(&s); got != tc.want[i] {
					t.Errorf("segment %d: %v, want %v", i, got, tc.want[i])
				}
			}
			if n := x.waiting.Load(); n != 0 {
				t.Errorf("%d handshakes are waited for, want 0", n)
			}
		})
	}
}

// TestHandshakeDataExpires: a handshake that nobody ends is forgotten.
func TestHandshakeDataExpires(t *testing.T) {
	clock := faketime.NewManualClock()
	x := newHandshakeData(clock)
	x.sent(sentSYNACK(t))
	other := hdrtest.TCPFrame{Src: hdrtest.PeerMAC, Dst: hdrtest.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4001, 80}, Flags: header.TCPFlagAck, TTL: 64}.Bytes()
	for _, after := range []time.Duration{handshakeTimeout, 1} {
		clock.Advance(after)
		for range synSlots {
			s := hdr.Received(other, hdrtest.Parse(other), testSeed)
			x.received(&s)
		}
		if n, want := x.waiting.Load(), int32(after/handshakeTimeout); n != want {
			t.Errorf("%d handshakes are waited for, want %d", n, want)
		}
	}
}

// sentSYNACK is a SYN-ACK with numbers 99 and 8.
func sentSYNACK(t *testing.T) *hdr.Segment {
	frame := hdrtest.TCPFrame{Src: hdrtest.OurMAC, Dst: hdrtest.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Seq: 99, Ack: 8, Flags: header.TCPFlagSyn | header.TCPFlagAck,
		TTL: 64}.Bytes()
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: len(frame)})
	t.Cleanup(pkt.DecRef)
	copy(pkt.LinkHeader().Push(len(frame)), frame)
	s := hdr.ParseSent(pkt, testSeed)
	return &s
}
