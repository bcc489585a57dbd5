package hdr_test

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// sent is a packet with these headers and no payload.
func sent(frame []byte) *gstack.PacketBuffer {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: len(frame)})
	copy(pkt.LinkHeader().Push(len(frame)), frame)
	return pkt
}

// example is a segment of ours.
func example() tcpframe.Frame {
	return tcpframe.Frame{
		Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2, Ports: [2]uint16{80, 4000},
		Seq: 5, Ack: 6, Flags: header.TCPFlagAck, Window: 7, TTL: 64,
		Options: tcpframe.Stamped(8, 9),
	}
}

// TestParseSent: the fields parsed from the headers of an outgoing packet.
func TestParseSent(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*tcpframe.Frame)
		cut      int // bytes taken off at the end
		tcp      bool
		fragment bool
		l4       int
	}{
		{name: "IPv4", tcp: true, l4: 34},
		{name: "IPv4 options", change: func(f *tcpframe.Frame) { f.IPOpts = []byte{1, 1, 1, 0} },
			tcp: true, l4: 38},
		{name: "IPv6", change: func(f *tcpframe.Frame) { f.V6 = true }, tcp: true, l4: 54},
		{name: "fragment", change: func(f *tcpframe.Frame) { f.Fragment = 8 }, fragment: true},
		{name: "short TCP header", cut: 13, l4: 34},
		{name: "no TCP header", cut: 32, l4: 34},
		{name: "short IP header", cut: 33},
	} {
		f := example()
		if tc.change != nil {
			tc.change(&f)
		}
		frame := f.Bytes()
		pkt := sent(frame[:len(frame)-tc.cut])
		s := hdr.ParseSent(pkt, random.Source{}.HashKey())
		if s.IsTCP() != tc.tcp || s.Fragment != tc.fragment || s.L4 != tc.l4 {
			t.Errorf("%s: TCP %v, fragment %v, transport header at %d", tc.name,
				s.IsTCP(), s.Fragment, s.L4)
		}
		if tc.tcp && (s.Flags() != hdr.FlagACK || s.Window() != 7 ||
			s.Options().Timestamp[5] != 8) {
			t.Errorf("%s: flags %#x, window %d, options %+v", tc.name,
				s.Flags(), s.Window(), s.Options())
		}
		pkt.DecRef()
	}
}

// TestFlowBothWays: a segment sent and one received of the same connection have the same key, by
// each function that tells it.
func TestFlowBothWays(t *testing.T) {
	seed := random.Source{}.HashKey()
	for _, v6 := range []bool{false, true} {
		f := example()
		f.V6 = v6
		pkt := sent(f.Bytes())
		out := hdr.ParseSent(pkt, seed)
		f.From, f.To, f.Ports = f.To, f.From, [2]uint16{4000, 80}
		answer := f.Bytes()
		in := hdr.Received(answer, hdrtest.Parse(answer), seed)
		a, hashA := out.Flow()
		b, hashB := in.Flow()
		if *a != *b || hashA != hashB {
			t.Errorf("IPv6 %v: %x and %x", v6, *a, *b)
		}
		if h := hdrtest.Parse(answer).ReceivedFlow(answer, seed); h != hashB {
			t.Errorf("IPv6 %v: hash %x of a received frame, %x of its segment", v6, h, hashB)
		}
		other := hdr.ParseSent(pkt, seed)
		other.Frame[other.L4]++
		if c, _ := other.Flow(); *c == *b {
			t.Errorf("IPv6 %v: another port has the same key", v6)
		}
		pkt.DecRef()
	}
}

// FuzzParseSent: no headers make the parser read beyond them.
func FuzzParseSent(f *testing.F) {
	seed := random.Source{}.HashKey()
	six := example()
	six.V6 = true
	f.Add(example().Bytes())
	f.Add(six.Bytes())
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 {
			return
		}
		pkt := sent(frame)
		defer pkt.DecRef()
		s := hdr.ParseSent(pkt, seed)
		s.QueueHash(s.Frame)
		hdr.ClassSelector(s.Frame)
		if s.IsTCP() {
			s.Flow()
			s.Options()
			s.Window()
		}
	})
}
