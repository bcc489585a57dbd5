package tcpfix

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestHandshakeData: after our SYN-ACK, with numbers 99 and 8, come two segments.
func TestHandshakeData(t *testing.T) {
	data := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: 8, Ack: 100, Flags: header.TCPFlagAck, TTL: 64,
		Payload: []byte("data")}
	for _, tc := range []struct {
		name   string
		first  func(*tcpframe.Frame)
		second func(*tcpframe.Frame)
		want   [2]Changes
	}{
		{name: "data, and again", want: [2]Changes{HandshakeData, 0}},
		{name: "an ACK, then data", first: func(f *tcpframe.Frame) { f.Payload = nil }},
		{name: "of another connection", want: [2]Changes{0, HandshakeData},
			first: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "behind a gap", want: [2]Changes{HandshakeData, 0},
			first: func(f *tcpframe.Frame) { f.Seq++ }},
		{name: "behind the widest gap", want: [2]Changes{HandshakeData, 0},
			first: func(f *tcpframe.Frame) { f.Seq += 1<<30 - 1 }},
		{name: "beyond any window", want: [2]Changes{0, HandshakeData},
			first: func(f *tcpframe.Frame) { f.Seq += 1 << 30 }},
		{name: "from before", want: [2]Changes{0, HandshakeData},
			first: func(f *tcpframe.Frame) { f.Seq-- }},
		{name: "of what was not sent", want: [2]Changes{0, HandshakeData},
			first: func(f *tcpframe.Frame) { f.Ack++ }},
		{name: "a SYN again", want: [2]Changes{0, HandshakeData},
			first: func(f *tcpframe.Frame) { f.Flags, f.Seq = header.TCPFlagSyn, 7 }},
		{name: "a reset", want: [2]Changes{0, HandshakeData},
			first: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagRst }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newHandshakeData(faketime.NewManualClock())
			x.sent(sentSYNACK(t))
			for i, change := range []func(*tcpframe.Frame){tc.first, tc.second} {
				f := data
				if change != nil {
					change(&f)
				}
				b := f.Bytes()
				s := hdr.Received(b, hdrtest.Parse(b), testSeed)
				got := x.received(&s)
				if got != tc.want[i] {
					t.Errorf("segment %d: %#x, want %#x", i, got, tc.want[i])
				}
				if got != 0 {
					if seq, _ := x.takeEnd(&s); seq != 8 {
						t.Errorf("segment %d: the ACK has number %d, want 8", i, seq)
					}
				}
			}
			if n := x.waiting.Load(); n != 0 {
				t.Errorf("%d handshakes are waited for, want 0", n)
			}
		})
	}
}

// TestHandshakeWithoutTimestamp: after a SYN-ACK with a timestamp, which echoes 77, comes a segment
// without one. Its SYN's is to be had once.
func TestHandshakeWithoutTimestamp(t *testing.T) {
	stamp := []byte{1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 77}
	synACK := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Seq: 99, Ack: 8, TTL: 64, Options: stamp,
		Flags: header.TCPFlagSyn | header.TCPFlagAck}
	end := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: 8, Ack: 100, Flags: header.TCPFlagAck, TTL: 64}
	for _, tc := range []struct {
		name         string
		ours, theirs []byte
		payload      string
		want         Changes
	}{
		{"an ACK", stamp, nil, "", HandshakeStamp},
		{"data", stamp, nil, "data", HandshakeStamp},
		{"an ACK with one", stamp, stamp, "", 0},
		{"data with one", stamp, stamp, "data", HandshakeData},
		{"none was agreed on", nil, nil, "", 0},
		{"none was agreed on, data", nil, nil, "data", HandshakeData},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newHandshakeData(faketime.NewManualClock())
			ours, theirs := synACK, end
			ours.Options, theirs.Options, theirs.Payload = tc.ours, tc.theirs, []byte(tc.payload)
			x.sent(sentSegment(t, ours))
			b := theirs.Bytes()
			s := hdr.Received(b, hdrtest.Parse(b), testSeed)
			if got := x.received(&s); got != tc.want {
				t.Errorf("%#x, want %#x", got, tc.want)
			}
			if tc.want == HandshakeStamp {
				_, first := x.takeEnd(&s)
				if _, again := x.takeEnd(&s); first != 77 || again != 0 {
					t.Errorf("timestamps %d and %d, want 77 and 0", first, again)
				}
			}
			if tc.want == HandshakeData {
				x.takeEnd(&s)
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
	other := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
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
	return sentSegment(t, tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1,
		To: 2, Ports: [2]uint16{80, 4000}, Seq: 99, Ack: 8, TTL: 64,
		Flags: header.TCPFlagSyn | header.TCPFlagAck})
}

// sentSegment is f on its way out.
func sentSegment(t *testing.T, f tcpframe.Frame) *hdr.Segment {
	frame := f.Bytes()
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: len(frame)})
	t.Cleanup(pkt.DecRef)
	copy(pkt.LinkHeader().Push(len(frame)), frame)
	s := hdr.ParseSent(pkt, testSeed)
	return &s
}
