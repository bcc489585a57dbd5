package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// sacked are the options of an ACK with these blocks, of a start and an end each, behind a timestamp.
func sacked(blocks ...uint32) []byte {
	b := append(stamped(1, 2), optionNop, optionNop, optionSACK, byte(2+4*len(blocks)))
	for _, n := range blocks {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// TestSuperSegments: our side has sent super-segments 1000-3000 and 3000-6000; which SACKs are taken out.
func TestSuperSegments(t *testing.T) {
	ours := tcpFrame{src: ourMAC, dst: peerMAC, from: 1, to: 2, ports: [2]uint16{80, 4000}, flags: header.TCPFlagAck, ttl: 64, options: stamped(1, 1)}
	peers := tcpFrame{src: peerMAC, dst: ourMAC, from: 2, to: 1, ports: [2]uint16{4000, 80}, flags: header.TCPFlagAck, ttl: 64}
	type span struct{ from, to uint32 }
	for _, tc := range []struct {
		name   string
		then   []span // sent after the two
		ack    uint32
		blocks []uint32
		change func(*tcpFrame)
		taken  bool
	}{
		{name: "first frame of the last lost", ack: 3000, blocks: []uint32{3100, 6000}, taken: true},
		{name: "frame within the last lost", ack: 3500, blocks: []uint32{3600, 6000}, taken: true},
		{name: "two lost", ack: 3500, blocks: []uint32{3700, 6000, 3550, 3600}, taken: true},
		{name: "first frames of both lost", ack: 1000, blocks: []uint32{1100, 3000, 3100, 6000}, taken: true},
		{name: "with data", ack: 3000, blocks: []uint32{3100, 6000}, change: func(f *tcpFrame) { f.payload = []byte("x") }, taken: true},
		{name: "last arrived, frame of the one before lost", ack: 1500, blocks: []uint32{1600, 6000}},
		{name: "beginning of the last arrived", ack: 1500, blocks: []uint32{3000, 3100}},
		{name: "something sent later arrived", ack: 3000, blocks: []uint32{3100, 6001}},
		{name: "duplicate", ack: 3500, blocks: []uint32{3100, 3200}},
		{name: "older than what is known", ack: 999, blocks: []uint32{1100, 1200}},
		{name: "everything acknowledged", ack: 6000, blocks: []uint32{6000, 6001}},
		{name: "sent again", then: []span{{3000, 3100}}, ack: 3100, blocks: []uint32{3200, 6000}},
		{name: "sent again and over", then: []span{{3000, 3100}, {6000, 9000}}, ack: 6000, blocks: []uint32{6100, 9000}, taken: true},
		{name: "five ago is forgotten", then: []span{{6000, 7000}, {7000, 8000}, {8000, 9000}}, ack: 1100, blocks: []uint32{1200, 1300}},
		{name: "four are known", then: []span{{6000, 7000}, {7000, 8000}}, ack: 1100, blocks: []uint32{1200, 1300}, taken: true},
		{name: "other port", ack: 3000, blocks: []uint32{3100, 6000}, change: func(f *tcpFrame) { f.ports[0]++ }},
		{name: "SYN", ack: 3000, blocks: []uint32{3100, 6000}, change: func(f *tcpFrame) { f.flags |= header.TCPFlagSyn }},
		{name: "no SACK", ack: 3000, change: func(f *tcpFrame) { f.options = stamped(1, 2) }},
		{name: "cut SACK", ack: 3000, change: func(f *tcpFrame) { f.options = append(stamped(1, 2), 1, 1, 5, 10) }},
	} {
		for _, origin := range []uint32{0, 0xffffe000} { // sequence numbers wrap
			for _, v6 := range []bool{false, true} {
				s := newGSOSACKFilter()
				for _, p := range append([]span{{1000, 3000}, {3000, 6000}}, tc.then...) {
					f := ours
					f.v6, f.seq = v6, p.from+origin
					frame := f.bytes()
					var l layout
					l.outgoingTCP(frame)
					s.sent(frame, &l, int(p.to-p.from))
				}
				f := peers
				f.v6, f.ack = v6, tc.ack+origin
				var blocks []uint32
				for _, n := range tc.blocks {
					blocks = append(blocks, n+origin)
				}
				f.options = sacked(blocks...)
				if tc.change != nil {
					tc.change(&f)
				}
				frame := f.bytes()
				want := bytes.Clone(frame)
				l := layoutOf(frame)
				if got := s.received(frame, l); got != tc.taken {
					t.Errorf("%s (IPv6 %v, origin %#x): taken out %v", tc.name, v6, origin, got)
				}
				if tc.taken {
					copy(want[l.l4+tcpLen+14:], bytes.Repeat([]byte{optionNop}, 2+4*len(blocks)))
				}
				if !bytes.Equal(frame, want) {
					t.Errorf("%s (IPv6 %v)\n got %x\nwant %x", tc.name, v6, frame, want)
				}
			}
		}
	}
}

// TestSuperSegmentsForget: a flow that takes another's place starts afresh.
func TestSuperSegmentsForget(t *testing.T) {
	s := newGSOSACKFilter()
	f := tcpFrame{src: ourMAC, dst: peerMAC, flags: header.TCPFlagAck, ttl: 64}
	var l layout
	for i := range 4 * gsoShards * gsoSlots {
		f.ports = [2]uint16{uint16(i), 80}
		frame := f.bytes()
		l.outgoingTCP(frame)
		s.sent(frame, &l, 1000)
	}
	for i := range s.shards {
		for j := range s.shards[i].slots {
			if f := &s.shards[i].slots[j]; f.key != 0 && f.known != 1 {
				t.Fatalf("%d super-segments of a flow that sent one", f.known)
			}
		}
	}
}

// TestLossInSuperSegment loses one frame of a super-segment that is all there is in flight: netstack must notice before its
// retransmission timeout. Cutting into segments itself, as a control, it does.
func TestLossInSuperSegment(t *testing.T) {
	const mss, frames = 1420, 10 // netstack's first window
	for _, noSegmentation := range []bool{false, true} {
		for _, hole := range []uint32{0, 4, 8} {
			t.Run(fmt.Sprintf("own segmentation %v/frame %d", noSegmentation, hole), func(t *testing.T) {
				var first, lost atomic.Uint32
				lose := func(frame []byte) bool {
					l := layoutOf(frame)
					if l.proto != protoTCP || l.l4 == 0 || l.end-l.l4 < mss {
						return false
					}
					seq := binary.BigEndian.Uint32(frame[l.l4+4:])
					first.CompareAndSwap(0, seq)
					return seq == first.Load()+hole*mss && lost.Add(1) == 1
				}
				s := setup{lose: lose, opts: Options{NoSegmentation: noSegmentation}, dv: dv.Config{DelayDrop: true}}
				attempts(t, s, func(t *testing.T, a, b *host) string {
					first.Store(0)
					lost.Store(0)
					ln := a.listen(t, a.v4, 80)
					conn := b.dial(t, a.v4, 80)
					server, err := ln.Accept()
					if err != nil {
						t.Fatal(err)
					}
					defer server.Close()
					if _, err := conn.Write(make([]byte, frames*mss)); err != nil {
						t.Fatal(err)
					}
					server.SetDeadline(time.Now().Add(time.Minute))
					if _, err := io.ReadFull(server, make([]byte, frames*mss)); err != nil {
						t.Fatal(err)
					}
					if lost.Load() == 0 {
						t.Error("nothing was lost")
					}
					sacks, timeouts := b.ep.Stats().RxSACKRemoved, b.stack.Stats().TCP.Timeouts.Value()
					if timeouts > 0 || (sacks == 0) != noSegmentation {
						return fmt.Sprintf("%d retransmission timeouts, %d SACKs taken out", timeouts, sacks)
					}
					return ""
				})
			})
		}
	}
}

// FuzzOptions: no options may make the link read beyond them.
func FuzzOptions(f *testing.F) {
	f.Add(stamped(1, 2), byte(8))
	f.Add(sacked(1, 2, 3, 4), byte(5))
	f.Add([]byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}, byte(3))
	f.Add([]byte{5, 1}, byte(5))
	f.Fuzz(func(t *testing.T, options []byte, kind byte) {
		option, sound := findOption(options, kind)
		if option != nil && (!sound || option[0] != kind || int(option[1]) != len(option) || !bytes.Contains(options, option)) {
			t.Fatalf("%x in %x, sound %v", option, options, sound)
		}
	})
}
