package rdma

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// TestShutWindow: our side has announced window 0 at ACK number 1000; which ACKs of the peer are changed, and to what.
func TestShutWindow(t *testing.T) {
	const at = 1000
	ours := tcpFrame{src: ourMAC, dst: peerMAC, from: 1, to: 2, ports: [2]uint16{80, 4000}, seq: 5, ack: at, flags: header.TCPFlagAck, ttl: 64}
	peers := tcpFrame{src: peerMAC, dst: ourMAC, from: 2, to: 1, ports: [2]uint16{4000, 80}, seq: at + 9, ack: 6, flags: header.TCPFlagAck, window: 7, ttl: 64}
	for _, tc := range []struct {
		name    string
		before  func(*tcpFrame) // of our segment with window 0
		then    func(*tcpFrame) // a further segment of ours
		ack     func(*tcpFrame) // of the peer's ACK
		changed bool
	}{
		{name: "beyond", changed: true},
		{name: "beyond, timestamps", ack: func(f *tcpFrame) { f.options = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2} }, changed: true},
		{name: "just where it should be", ack: func(f *tcpFrame) { f.seq = at }},
		{name: "before", ack: func(f *tcpFrame) { f.seq = at - 1 }},
		{name: "last of a unit", ack: func(f *tcpFrame) { f.seq = at + maxWindowUnit - 1 }, changed: true},
		{name: "more than a unit beyond", ack: func(f *tcpFrame) { f.seq = at + maxWindowUnit }},
		{name: "with data", ack: func(f *tcpFrame) { f.payload = []byte("x") }},
		{name: "fin", ack: func(f *tcpFrame) { f.flags |= header.TCPFlagFin }},
		{name: "reset", ack: func(f *tcpFrame) { f.flags |= header.TCPFlagRst }},
		{name: "syn", ack: func(f *tcpFrame) { f.flags |= header.TCPFlagSyn }},
		{name: "other port", ack: func(f *tcpFrame) { f.ports[0]++ }},
		{name: "other address", ack: func(f *tcpFrame) { f.from++ }},
		{name: "other direction", ack: func(f *tcpFrame) { f.ports = [2]uint16{80, 4000} }},
		{name: "window not shut", before: func(f *tcpFrame) { f.window = 1 }},
		{name: "a reset has no window", before: func(f *tcpFrame) { f.flags |= header.TCPFlagRst }},
		{name: "open again", then: func(f *tcpFrame) { f.window = 256 }},
		{name: "shut again further on", then: func(f *tcpFrame) { f.ack = at + 5 }, ack: func(f *tcpFrame) { f.seq = at + 5 }},
		{name: "another flow opens", then: func(f *tcpFrame) { f.window, f.ports[1] = 1, 4001 }, changed: true},
	} {
		for _, v6 := range []bool{false, true} {
			var s zeroWindow
			apply := func(f tcpFrame, e func(*tcpFrame)) []byte {
				f.v6 = v6
				if e != nil {
					e(&f)
				}
				return f.bytes()
			}
			noteSent(&s, apply(ours, tc.before))
			if tc.then != nil {
				noteSent(&s, apply(ours, tc.then))
			}
			frame := apply(peers, tc.ack)
			was := bytes.Clone(frame)
			l := layout{etherType: typeIPv4, l3: ethLen}
			if v6 {
				l.etherType = typeIPv6
			}
			l.parse(frame)
			if got := s.received(frame, &l); got != tc.changed {
				t.Errorf("%s (IPv6 %v): changed %v", tc.name, v6, got)
			}
			if tc.changed {
				header.TCP(was[l.l4:]).SetSequenceNumber(at)
			}
			if !bytes.Equal(frame, was) {
				t.Errorf("%s (IPv6 %v)\n got %x\nwant %x", tc.name, v6, frame, was)
			}
		}
	}
}

// TestShutWindowsAreBounded: connections that die with their window shut do not pile up.
func TestShutWindowsAreBounded(t *testing.T) {
	var s zeroWindow
	f := tcpFrame{src: ourMAC, dst: peerMAC, flags: header.TCPFlagAck, ttl: 64}
	for i := range 3 * maxZeroWindows {
		f.ports = [2]uint16{uint16(i), uint16(i >> 16)}
		noteSent(&s, f.bytes())
		if n := s.count.Load(); int(n) != len(s.flows) || n > maxZeroWindows || n == 0 {
			t.Fatalf("%d flows, %d counted", len(s.flows), n)
		}
	}
}

// noteSent has s take note of an outgoing frame.
func noteSent(s interface{ sent([]byte, *layout) }, frame []byte) {
	var l layout
	if l.outgoingTCP(frame) {
		s.sent(frame, &l)
	}
}
