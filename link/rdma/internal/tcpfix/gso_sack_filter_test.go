package tcpfix

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestGSOSACK: our side has sent super-segments 1000-3000 and 3000-6000; which SACKs are removed.
func TestGSOSACK(t *testing.T) {
	ours := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Flags: header.TCPFlagAck, TTL: 64,
		Options: tcpframe.Stamped(1, 1)}
	peers := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Flags: header.TCPFlagAck, TTL: 64}
	type span struct{ from, to uint32 }
	for _, tc := range []struct {
		name   string
		then   []span // sent after the two
		ack    uint32
		blocks []uint32
		change func(*tcpframe.Frame)
		taken  bool
	}{
		{name: "first frame of the last lost", ack: 3000,
			blocks: []uint32{3100, 6000}, taken: true},
		{name: "frame within the last lost", ack: 3500, blocks: []uint32{3600, 6000}, taken: true},
		{name: "two lost", ack: 3500, blocks: []uint32{3700, 6000, 3550, 3600}, taken: true},
		{name: "first frames of both lost", ack: 1000,
			blocks: []uint32{1100, 3000, 3100, 6000}, taken: true},
		{name: "with data", ack: 3000, blocks: []uint32{3100, 6000},
			change: func(f *tcpframe.Frame) { f.Payload = []byte("x") }, taken: true},
		{name: "last arrived, frame of the one before lost", ack: 1500,
			blocks: []uint32{1600, 6000}},
		{name: "beginning of the last arrived", ack: 1500, blocks: []uint32{3000, 3100}},
		{name: "something sent later arrived", ack: 3000, blocks: []uint32{3100, 6001}},
		{name: "duplicate", ack: 3500, blocks: []uint32{3100, 3200}},
		{name: "older than what is known", ack: 999, blocks: []uint32{1100, 1200}},
		{name: "everything acknowledged", ack: 6000, blocks: []uint32{6000, 6001}},
		{name: "sent again", then: []span{{3000, 3100}}, ack: 3100, blocks: []uint32{3200, 6000}},
		{name: "sent again and over", then: []span{{3000, 3100}, {6000, 9000}}, ack: 6000,
			blocks: []uint32{6100, 9000}, taken: true},
		{name: "five ago is forgotten", then: []span{{6000, 7000}, {7000, 8000}, {8000, 9000}},
			ack: 1100, blocks: []uint32{1200, 1300}},
		{name: "four are known", then: []span{{6000, 7000}, {7000, 8000}}, ack: 1100,
			blocks: []uint32{1200, 1300}, taken: true},
		{name: "other port", ack: 3000, blocks: []uint32{3100, 6000},
			change: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "SYN", ack: 3000, blocks: []uint32{3100, 6000},
			change: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagSyn }},
		{name: "no SACK", ack: 3000,
			change: func(f *tcpframe.Frame) { f.Options = tcpframe.Stamped(1, 2) }},
		{name: "cut SACK", ack: 3000,
			change: func(f *tcpframe.Frame) {
				f.Options = append(tcpframe.Stamped(1, 2), 1, 1, 5,
					10)
			}},
	} {
		for _, origin := range []uint32{0, 0xffffe000} { // sequence numbers wrap
			for _, v6 := range []bool{false, true} {
				s := new(gsoSACKFilter)
				for _, p := range append([]span{{1000, 3000}, {3000, 6000}}, tc.then...) {
					f := ours
					f.V6, f.Seq = v6, p.from+origin
					noteData(s, f.Bytes(), int(p.to-p.from))
				}
				f := peers
				f.V6, f.Ack = v6, tc.ack+origin
				var blocks []uint32
				for _, n := range tc.blocks {
					blocks = append(blocks, n+origin)
				}
				f.Options = tcpframe.Sacked(blocks...)
				if tc.change != nil {
					tc.change(&f)
				}
				frame := f.Bytes()
				want := bytes.Clone(frame)
				l := hdrtest.Parse(frame)
				if got := noteReceived(s, frame); got != tc.taken {
					t.Errorf("%s (IPv6 %v, origin %#x): taken out %v", tc.name, v6, origin, got)
				}
				if tc.taken {
					copy(want[l.L4+hdr.TCPLen+14:],
						bytes.Repeat([]byte{hdr.OptNop}, 2+4*len(blocks)))
				}
				if !bytes.Equal(frame, want) {
					t.Errorf("%s (IPv6 %v)\n got %x\nwant %x", tc.name, v6, frame, want)
				}
			}
		}
	}
}

// TestGSOSACKForgets: a flow that replaces another one starts with no state.
func TestGSOSACKForgets(t *testing.T) {
	s := new(gsoSACKFilter)
	f := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC,
		Flags: header.TCPFlagAck, TTL: 64}
	for i := range 4 * gsoShards * gsoSlots {
		f.Ports = [2]uint16{uint16(i), 80}
		noteData(s, f.Bytes(), 1000)
	}
	for i := range s.shards {
		for j := range s.shards[i].slots {
			if f := &s.shards[i].slots[j]; f.key != 0 && f.known != 1 {
				t.Fatalf("%d super-segments of a flow that sent one", f.known)
			}
		}
	}
}
