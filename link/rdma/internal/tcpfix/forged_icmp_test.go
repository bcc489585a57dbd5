package tcpfix

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// unreachable is a router's message about a segment of flow ours with this sequence number.
func unreachable(seq uint32) []byte {
	quoted := ours(seq, 0)
	message := append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, quoted.Bytes()[hdr.EthLen:]...)
	f := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 9, To: 1, TTL: 64}
	return f.Encode(hdr.ProtoICMP, message, 2)
}

// before is n bytes before seq.
func before(seq, n uint32) uint32 { return seq - n }

// flowsOf returns flows that these segments were sent in.
func flowsOf(t *testing.T, sent ...tcpframe.Frame) *Flows {
	flows := New(new(virtualClock), random.Source{},
		func(*gstack.PacketBuffer, func() *gstack.PacketBuffer) bool { return true },
		func([]byte) {})
	for _, f := range sent {
		pkt := packetOf(f)
		s := hdr.ParseSent(pkt, flows.Key())
		if _, drop := flows.Sent(pkt, &s); drop {
			t.Errorf("segment from %d dropped", f.Seq)
		}
		pkt.DecRef()
	}
	return flows
}

// TestTooBigReceived delivers a message that a segment was too big, with an MTU below the least.
func TestTooBigReceived(t *testing.T) {
	big := ours(1000, 1400)
	flows := flowsOf(t, big)
	defer flows.Close()
	message := append([]byte{3, 4, 0, 0, 0, 0, 0, 100}, big.Bytes()[hdr.EthLen:]...)
	router := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 9, To: 1, TTL: 64}
	frame := router.Encode(hdr.ProtoICMP, message, 2)
	if c := flows.Received(frame, hdrtest.Parse(frame)); c != PathMTU {
		t.Errorf("the message changes %#x", c)
	}
	s, _ := hdr.Quoted(frame, hdrtest.Parse(frame), flows.Key())
	key, hash := s.Flow()
	if f := flows.resend.shard(hash).flows[*key]; f == nil || f.refused.mtu != leastMTU4 {
		t.Errorf("the flow is %+v", f)
	}
}

// TestForged has segments sent, and then messages come about others.
func TestForged(t *testing.T) {
	syn := func(seq uint32, flags header.TCPFlags) tcpframe.Frame {
		f := ours(seq, 0)
		f.Flags = flags
		return f
	}
	const flag, ack = header.TCPFlagSyn, header.TCPFlagAck
	for _, tc := range []struct {
		name   string
		sent   []tcpframe.Frame
		seq    uint32
		forged bool
	}{
		{"nothing is known", nil, 5, false},
		{"the data", []tcpframe.Frame{ours(1000, 100)}, 1000, false},
		{"behind the data", []tcpframe.Frame{ours(1000, 100)}, 1100, false},
		{"further behind", []tcpframe.Frame{ours(1000, 100)}, 1101, true},
		{"long before", []tcpframe.Frame{ours(1000, 100)}, before(1100, maxQuoted),
			false},
		{"longer before", []tcpframe.Frame{ours(1000, 100)}, before(1099, maxQuoted),
			true},
		{"more data", []tcpframe.Frame{ours(1000, 100), ours(1100, 50)}, 1150, false},
		{"data again", []tcpframe.Frame{ours(1100, 50), ours(1000, 100)}, 1150, false},
		{"the SYN", []tcpframe.Frame{syn(77, flag)}, 77, false},
		{"behind the SYN", []tcpframe.Frame{syn(77, flag)}, 78, false},
		{"further behind the SYN", []tcpframe.Frame{syn(77, flag)}, 79, true},
		{"before the SYN", []tcpframe.Frame{syn(77, flag)}, 76, true},
		{"a SYN-ACK", []tcpframe.Frame{syn(77, flag|ack)}, 5, false},
		{"a SYN-ACK after a SYN", []tcpframe.Frame{syn(77, flag), syn(99, flag|ack)}, 99, false},
		{"data after a SYN", []tcpframe.Frame{syn(77, flag), ours(78, 10)}, 88, false},
		{"a new SYN after data", []tcpframe.Frame{ours(1000, 100), syn(77, flag)}, 77, false},
	} {
		flows := flowsOf(t, tc.sent...)
		frame := unreachable(tc.seq)
		if got := flows.Received(frame, hdrtest.Parse(frame)) == Forged; got != tc.forged {
			t.Errorf("%s: forged: %v", tc.name, got)
		}
		flows.Close()
	}
}
