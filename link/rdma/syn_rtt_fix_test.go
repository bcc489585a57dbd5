package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic/wire"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// stamped are the options of a segment with a timestamp.
func stamped(value, echo uint32) []byte {
	b := []byte{optionNop, optionNop, optionTimestamp, timestampLen}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
}

// clocked are handshakes with a clock that the test turns.
func clocked() (*synRTTFix, *time.Duration) {
	s, now := newSYNRTTFix(), new(time.Duration)
	s.since = func() time.Duration { return *now }
	return &s, now
}

func layoutOf(frame []byte) *layout {
	l := &layout{etherType: binary.BigEndian.Uint16(frame[12:]), l3: ethLen}
	l.parse(frame)
	return l
}

// TestHandshake: our SYN-ACK with timestamp 5000 has been sent at 0, and again at 1 s; which answers are changed.
func TestHandshake(t *testing.T) {
	ours := tcpFrame{src: ourMAC, dst: peerMAC, from: 1, to: 2, ports: [2]uint16{80, 4000}, seq: 99, ack: 7, flags: header.TCPFlagSyn | header.TCPFlagAck, ttl: 64, options: stamped(5000, 1)}
	peers := tcpFrame{src: peerMAC, dst: ourMAC, from: 2, to: 1, ports: [2]uint16{4000, 80}, seq: 7, ack: 100, flags: header.TCPFlagAck, ttl: 64, options: stamped(2, 5000)}
	for _, tc := range []struct {
		name   string
		again  func(*tcpFrame) // the copy
		gap    time.Duration   // before it; 1 s
		answer func(*tcpFrame)
		echo   uint32 // in the answer as changed, or 0
	}{
		{name: "ACK", echo: 5999},
		{name: "with data", answer: func(f *tcpFrame) { f.payload = []byte("GET") }, echo: 5999},
		{name: "SYN-ACK to our SYN", answer: func(f *tcpFrame) { f.flags |= header.TCPFlagSyn }, echo: 5999},
		{name: "sooner", gap: 2 * time.Millisecond, echo: 5001},
		{name: "at once", gap: time.Millisecond},
		{name: "no copy", again: func(f *tcpFrame) { f.flags = header.TCPFlagAck }},
		{name: "another connection's", again: func(f *tcpFrame) { f.ports[0]++ }},
		{name: "a new connection on the same ports", again: func(f *tcpFrame) { f.seq++ }},
		{name: "the copy has its own timestamp", again: func(f *tcpFrame) { f.options = stamped(6000, 1) }},
		{name: "another timestamp", answer: func(f *tcpFrame) { f.options = stamped(2, 5001) }},
		{name: "no timestamp", answer: func(f *tcpFrame) { f.options = nil }},
		{name: "timestamp of odd length", answer: func(f *tcpFrame) { f.options = []byte{8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} }},
		{name: "reset", answer: func(f *tcpFrame) { f.flags |= header.TCPFlagRst }},
		{name: "other port", answer: func(f *tcpFrame) { f.ports[0]++ }},
		{name: "other address", answer: func(f *tcpFrame) { f.from++ }},
	} {
		for _, v6 := range []bool{false, true} {
			s, now := clocked()
			apply := func(f tcpFrame, change func(*tcpFrame)) []byte {
				f.v6 = v6
				if change != nil {
					change(&f)
				}
				return f.bytes()
			}
			if tc.gap == 0 {
				tc.gap = time.Second
			}
			noteSent(s, apply(ours, nil))
			*now += tc.gap
			noteSent(s, apply(ours, tc.again))
			*now += time.Millisecond
			frame := apply(peers, tc.answer)
			want := bytes.Clone(frame)
			if got := s.received(frame, layoutOf(frame)); got != (tc.echo != 0) {
				t.Errorf("%s (IPv6 %v): changed %v", tc.name, v6, got)
			}
			if tc.echo != 0 {
				l := layoutOf(want)
				binary.BigEndian.PutUint32(timestampOf(want[l.l4:l.end])[6:], tc.echo)
			}
			if !bytes.Equal(frame, want) {
				t.Errorf("%s (IPv6 %v)\n got %x\nwant %x", tc.name, v6, frame, want)
			}
		}
	}
}

// TestHandshakesAreBounded: SYN-ACKs that nobody answers do not pile up, and cost nothing once they have expired.
func TestHandshakesAreBounded(t *testing.T) {
	s, now := clocked()
	f := tcpFrame{src: ourMAC, dst: peerMAC, flags: header.TCPFlagSyn, ttl: 64, options: stamped(5, 0)}
	for i := range 3 * synSlots {
		f.ports = [2]uint16{uint16(i), 80}
		for range 3 {
			noteSent(s, f.bytes())
			*now += time.Millisecond
		}
	}
	repeated := 0
	for _, h := range s.slots {
		if h.first != h.last {
			repeated++
		}
	}
	if n := int(s.repeated.Load()); n != repeated || n == 0 || n > synSlots {
		t.Errorf("%d are repeated, %d counted", repeated, n)
	}
	*now += synTimeout + time.Second
	f.flags, f.options = header.TCPFlagAck, stamped(5, 6)
	for range synSlots {
		s.received(f.bytes(), layoutOf(f.bytes()))
	}
	if n := s.repeated.Load(); n != 0 {
		t.Errorf("%d left when all have expired", n)
	}
}

// filter is a wire that loses what lose says.
type filter struct {
	wire.Wire
	lose func(frame []byte) bool
}

func (w *filter) Send(frames []frame.Frame) (int, error) {
	for i := range frames {
		if w.lose(frames[i].Data) {
			continue
		}
		if n, err := w.Wire.Send(frames[i : i+1]); n == 0 || err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

// info reads what a stack's only TCP connection knows of its path.
func (h *host) info(t *testing.T) (info tcpip.TCPInfoOption) {
	t.Helper()
	for _, e := range h.stack.RegisteredEndpoints() {
		ep, ok := e.(tcpip.Endpoint)
		if !ok || ep.GetSockOpt(&info) != nil || info.RTT == 0 {
			continue
		}
		return info
	}
	t.Fatal("no connection")
	return info
}

// attempts runs try up to five times, each with hosts of its own, until it is content. For what a busy machine may spoil, which stops for
// as long as netstack's timeouts, but not each time.
func attempts(t *testing.T, s setup, try func(t *testing.T, a, b *host) (complaint string)) {
	t.Helper()
	complaint := ""
	for i := range 5 {
		t.Run(fmt.Sprint("attempt ", i), func(t *testing.T) {
			a, b := pair(t, s)
			complaint = try(t, a, b)
		})
		if complaint == "" || t.Failed() {
			return
		}
	}
	t.Error(complaint)
}

// TestLostHandshake loses the first SYN, SYN-ACK or final ACK of a connection. The round trip time that both ends start with
// must not be that of netstack's retransmission, which is 1 s.
func TestLostHandshake(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags header.TCPFlags
	}{{"SYN", header.TCPFlagSyn}, {"SYN-ACK", header.TCPFlagSyn | header.TCPFlagAck}, {"ACK", header.TCPFlagAck}} {
		t.Run(tc.name, func(t *testing.T) {
			var lost atomic.Bool
			lose := func(frame []byte) bool {
				l := layoutOf(frame)
				return l.proto == protoTCP && l.l4 > 0 && header.TCPFlags(frame[l.l4+13]) == tc.flags && lost.CompareAndSwap(false, true)
			}
			attempts(t, setup{lose: lose}, func(t *testing.T, a, b *host) string {
				ln := a.listen(t, a.v4, 80)
				lost.Store(false)
				b.dial(t, a.v4, 80)
				if _, err := ln.Accept(); err != nil {
					t.Fatal(err)
				}
				if n := a.ep.Stats().RxSYNRTTFixed + b.ep.Stats().RxSYNRTTFixed; n == 0 {
					t.Error("no timestamp changed")
				}
				if s, c := a.info(t).RTT, b.info(t).RTT; max(s, c) > 900*time.Millisecond {
					return fmt.Sprintf("round trip times %v and %v", s, c)
				}
				return ""
			})
		})
	}
}
