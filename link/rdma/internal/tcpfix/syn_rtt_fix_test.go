package tcpfix

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// clocked is a synRTTFix with a clock that the test sets.
func clocked() (*synRTTFix, *time.Duration) {
	s, now := newSYNRTTFix(tcpip.NewStdClock()), new(time.Duration)
	s.since = func() time.Duration { return *now }
	return &s, now
}

// TestSYNRTT: our SYN-ACK with timestamp 5000 has been sent at 0, and again at 1 s; which answers
// are changed.
func TestSYNRTT(t *testing.T) {
	ours := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Seq: 99, Ack: 7, Flags: header.TCPFlagSyn | header.TCPFlagAck,
		TTL: 64, Options: tcpframe.Stamped(5000, 1)}
	peers := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: 7, Ack: 100, Flags: header.TCPFlagAck, TTL: 64,
		Options: tcpframe.Stamped(2, 5000)}
	for _, tc := range []struct {
		name   string
		again  func(*tcpframe.Frame) // the copy
		gap    time.Duration         // before it; 1 s
		late   time.Duration         // between the copy and the answer
		answer func(*tcpframe.Frame)
		echo   uint32 // in the answer as changed, or 0
	}{
		{name: "ACK", echo: 5999},
		{name: "less than a third of a second later", late: 300 * time.Millisecond, echo: 5999},
		{name: "later, to a copy before or data in its place", late: 2 * time.Second, echo: 7667},
		{name: "with data", answer: func(f *tcpframe.Frame) { f.Payload = []byte("GET") },
			echo: 5999},
		{name: "SYN-ACK to our SYN",
			answer: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagSyn }, echo: 5999},
		{name: "sooner", gap: 2 * time.Millisecond, echo: 5001},
		{name: "at once", gap: time.Millisecond},
		{name: "no copy", again: func(f *tcpframe.Frame) { f.Flags = header.TCPFlagAck }},
		{name: "another connection's", again: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "a new connection on the same ports", again: func(f *tcpframe.Frame) { f.Seq++ }},
		{name: "the copy has its own timestamp",
			again: func(f *tcpframe.Frame) { f.Options = tcpframe.Stamped(6000, 1) }},
		{name: "another timestamp",
			answer: func(f *tcpframe.Frame) { f.Options = tcpframe.Stamped(2, 5001) }},
		{name: "no timestamp", answer: func(f *tcpframe.Frame) { f.Options = nil }},
		{name: "timestamp of odd length", answer: func(f *tcpframe.Frame) {
			f.Options = []byte{8,
				9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		}},
		{name: "reset", answer: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagRst }},
		{name: "other port", answer: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "other address", answer: func(f *tcpframe.Frame) { f.From++ }},
	} {
		for _, v6 := range []bool{false, true} {
			s, now := clocked()
			apply := func(f tcpframe.Frame, change func(*tcpframe.Frame)) []byte {
				f.V6 = v6
				if change != nil {
					change(&f)
				}
				return f.Bytes()
			}
			if tc.gap == 0 {
				tc.gap = time.Second
			}
			noteSent(s, apply(ours, nil))
			*now += tc.gap
			noteSent(s, apply(ours, tc.again))
			*now += time.Millisecond + tc.late
			frame := apply(peers, tc.answer)
			want := bytes.Clone(frame)
			if got := noteReceived(s, frame); got != (tc.echo != 0) {
				t.Errorf("%s (IPv6 %v): changed %v", tc.name, v6, got)
			}
			if tc.echo != 0 {
				l := hdrtest.Parse(want)
				binary.BigEndian.PutUint32(hdr.OptionsOf(want[l.L4:l.End]).Timestamp[6:], tc.echo)
			}
			if !bytes.Equal(frame, want) {
				t.Errorf("%s (IPv6 %v)\n got %x\nwant %x", tc.name, v6, frame, want)
			}
		}
	}
}

// TestSYNRTTOfOne: a SYN has left once, perhaps long after its timestamp. The echo in the SYN-ACK
// becomes 0, so that it is no sample; that in an ACK stays, as that of what answers our SYN-ACK.
func TestSYNRTTOfOne(t *testing.T) {
	for name, tc := range map[string]struct {
		flags header.TCPFlags
		echo  uint32
	}{
		"SYN-ACK": {header.TCPFlagSyn | header.TCPFlagAck, 0},
		"ACK":     {header.TCPFlagAck, 5000},
	} {
		s, _ := clocked()
		noteSent(s, tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
			Ports: [2]uint16{4000, 80}, Seq: 99, Flags: header.TCPFlagSyn, TTL: 64,
			Options: tcpframe.Stamped(5000, 0)}.Bytes())
		frame := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
			Ports: [2]uint16{80, 4000}, Seq: 7, Ack: 100, Flags: tc.flags, TTL: 64,
			Options: tcpframe.Stamped(2, 5000)}.Bytes()
		noteReceived(s, frame)
		l := hdrtest.Parse(frame)
		stamp := hdr.OptionsOf(frame[l.L4:l.End]).Timestamp
		if got := binary.BigEndian.Uint32(stamp[6:]); got != tc.echo {
			t.Errorf("%s echoes %d, want %d", name, got, tc.echo)
		}
	}
}

// TestSYNRTTIsBounded: SYN-ACKs without an answer do not accumulate, and cost nothing once they
// have expired.
func TestSYNRTTIsBounded(t *testing.T) {
	s, now := clocked()
	f := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, Flags: header.TCPFlagSyn,
		TTL: 64, Options: tcpframe.Stamped(5, 0)}
	for i := range 3 * synSlots {
		f.Ports = [2]uint16{uint16(i), 80}
		for range 3 {
			noteSent(s, f.Bytes())
			*now += time.Millisecond
		}
	}
	repeated := 0
	for _, h := range s.syns.slots {
		if h.of.first != h.of.last {
			repeated++
		}
	}
	if n := int(s.repeated.Load()); n != repeated || n == 0 || n > synSlots {
		t.Errorf("%d are repeated, %d counted", repeated, n)
	}
	*now += synTimeout + time.Second
	f.Flags, f.Options = header.TCPFlagAck, tcpframe.Stamped(5, 6)
	for range synSlots {
		noteReceived(s, f.Bytes())
	}
	if n := s.repeated.Load(); n != 0 {
		t.Errorf("%d left when all have expired", n)
	}
}
