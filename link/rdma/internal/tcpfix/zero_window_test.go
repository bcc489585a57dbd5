package tcpfix

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestZeroWindow: our side has announced window 0 at ACK number 1000; which ACKs of the peer are
// changed, and to what.
func TestZeroWindow(t *testing.T) {
	const at = 1000
	ours := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Seq: 5, Ack: at, Flags: header.TCPFlagAck, TTL: 64}
	peers := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: at + 9, Ack: 6,
		Flags: header.TCPFlagAck, Window: 7, TTL: 64}
	for _, tc := range []struct {
		name    string
		before  func(*tcpframe.Frame) // of our segment with window 0
		then    func(*tcpframe.Frame) // a further segment of ours
		ack     func(*tcpframe.Frame) // of the peer's ACK
		changed bool
	}{
		{name: "beyond", changed: true},
		{name: "beyond, timestamps", ack: func(f *tcpframe.Frame) {
			f.Options = []byte{1, 1, 8,
				10, 0, 0, 0, 1, 0, 0, 0, 2}
		}, changed: true},
		{name: "just where it should be", ack: func(f *tcpframe.Frame) { f.Seq = at }},
		{name: "before", ack: func(f *tcpframe.Frame) { f.Seq = at - 1 }},
		{name: "last of a unit", ack: func(f *tcpframe.Frame) { f.Seq = at + maxWindowUnit - 1 },
			changed: true},
		{name: "more than a unit beyond",
			ack: func(f *tcpframe.Frame) { f.Seq = at + maxWindowUnit }},
		{name: "with data", ack: func(f *tcpframe.Frame) { f.Payload = []byte("x") }},
		{name: "fin", ack: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagFin }},
		{name: "reset", ack: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagRst }},
		{name: "syn", ack: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagSyn }},
		{name: "other port", ack: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "other address", ack: func(f *tcpframe.Frame) { f.From++ }},
		{name: "other direction", ack: func(f *tcpframe.Frame) { f.Ports = [2]uint16{80, 4000} }},
		{name: "window not shut", before: func(f *tcpframe.Frame) { f.Window = 1 }},
		{name: "a reset has no window",
			before: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagRst }},
		{name: "open again", then: func(f *tcpframe.Frame) { f.Window = 256 }},
		{name: "shut again further on", then: func(f *tcpframe.Frame) { f.Ack = at + 5 },
			ack: func(f *tcpframe.Frame) { f.Seq = at + 5 }},
		{name: "another flow opens", then: func(f *tcpframe.Frame) {
			f.Window,
				f.Ports[1] = 1, 4001
		}, changed: true},
	} {
		for _, v6 := range []bool{false, true} {
			var s zeroWindow
			apply := func(f tcpframe.Frame, e func(*tcpframe.Frame)) []byte {
				f.V6 = v6
				if e != nil {
					e(&f)
				}
				return f.Bytes()
			}
			noteSent(&s, apply(ours, tc.before))
			if tc.then != nil {
				noteSent(&s, apply(ours, tc.then))
			}
			frame := apply(peers, tc.ack)
			was := bytes.Clone(frame)
			l := hdrtest.Parse(frame)
			if got := noteReceived(&s, frame); got != tc.changed {
				t.Errorf("%s (IPv6 %v): changed %v", tc.name, v6, got)
			}
			if tc.changed {
				header.TCP(was[l.L4:]).SetSequenceNumber(at)
			}
			if !bytes.Equal(frame, was) {
				t.Errorf("%s (IPv6 %v)\n got %x\nwant %x", tc.name, v6, frame, was)
			}
		}
	}
}

// TestZeroWindowsAreBounded: connections that end with a zero window do not accumulate.
func TestZeroWindowsAreBounded(t *testing.T) {
	var s zeroWindow
	f := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC,
		Flags: header.TCPFlagAck, TTL: 64}
	for i := range 3 * maxZeroWindows {
		f.Ports = [2]uint16{uint16(i), uint16(i >> 16)}
		noteSent(&s, f.Bytes())
		if n := s.count.Load(); int(n) != len(s.flows) || n > maxZeroWindows || n == 0 {
			t.Fatalf("%d flows, %d counted", len(s.flows), n)
		}
	}
}

// noteSent makes s record an outgoing frame.
func noteSent(f interface{ sent(*hdr.Segment) }, frame []byte) { noteData(f, frame, 0) }

// noteData is noteSent with size bytes of data behind the frame.
func noteData(f interface{ sent(*hdr.Segment) }, frame []byte, size int) {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: len(frame),
		Payload: buffer.MakeWithData(make([]byte, size))})
	defer pkt.DecRef()
	copy(pkt.LinkHeader().Push(len(frame)), frame)
	if s := hdr.ParseSent(pkt, testSeed); s.IsTCP() {
		f.sent(&s)
	}
}

// noteReceived passes a received frame to f, and reports whether f changed it.
func noteReceived(f interface{ received(*hdr.Segment) bool }, frame []byte) bool {
	s := hdr.Received(frame, hdrtest.Parse(frame), testSeed)
	return f.received(&s)
}

var testSeed = random.Source{}.HashKey()
