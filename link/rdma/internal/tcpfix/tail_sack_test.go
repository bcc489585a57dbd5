package tcpfix

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// blocks has the peer report data behind ack, and says whether netstack is told.
func (r *resending) blocks(ack uint32, blocks ...uint32) (told bool) {
	f := tcpframe.Frame{V6: r.v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, TTL: 64, Ack: ack, Flags: header.TCPFlagAck,
		Options: tcpframe.Sacked(blocks...)}
	frame := f.Bytes()
	s := hdr.Received(frame, hdrtest.Parse(frame), r.seed)
	hidden := r.received(&s)&SACKRemoved != 0
	if told = hdr.OptionsOf(s.TCP()).SACK != nil; told == hidden {
		panic("removed, and not said so, or the other way round")
	}
	return told
}

// TestTailHidden: a report of less than two segments or three blocks does not reach netstack where
// far more is missing, nor while what was sent before a timeout is repaired.
func TestTailHidden(t *testing.T) {
	const mss = 1000
	for _, tt := range []struct {
		name   string
		flight uint32 // segments
		tail   bool   // the last is sent again first
		first  bool   // the first is sent again after a timeout
		ack    uint32
		blocks []uint32
		told   bool
	}{
		{"the last of many", 20, true, false, 0,
			[]uint32{19000, 20000}, false},
		{"nothing was sent again", 20, false, false, 0,
			[]uint32{19000, 20000}, true},
		{"the last of few", 7, true, false, 0, []uint32{6000, 7000}, true},
		{"the last of few after a timeout", 7, true, true, 0,
			[]uint32{6000, 7000}, false},
		{"the last two", 20, true, false, 0, []uint32{18000, 20000}, true},
		{"two blocks, less than two segments", 20, true, false, 0,
			[]uint32{19000, 20000, 10000, 10999}, false},
		{"three blocks", 20, true, false, 0,
			[]uint32{19000, 19001, 10000, 10001, 12000, 12001}, true},
		{"a duplicate", 20, true, false, 2000, []uint32{1000, 2000}, true},
		{"what was never sent", 20, true, false, 0,
			[]uint32{20000, 20001}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newResending()
			defer r.close()
			for i := range tt.flight {
				r.write(ours(i*mss, mss), 0)
			}
			if tt.tail {
				r.write(ours((tt.flight-1)*mss, mss), 0)
			}
			if tt.first {
				r.wait(2 * timeoutGap)
				r.write(ours(0, mss), 0)
			}
			if told := r.blocks(tt.ack, tt.blocks...); told != tt.told {
				t.Errorf("netstack is told: %v, want %v", told, tt.told)
			}
		})
	}
}

// TestFirstTimeout: the echo is older from the first timeout on, if the tail loss probe came
// before, and not if an acknowledgement has had netstack send the segment again.
func TestFirstTimeout(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // an acknowledgement of nothing new
		want  uint32
	}{
		{"timeout", 2 * answerGap, 6000 - maxEchoAge - echoAge},
		{"answer", answerGap / 2, 6000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newResending()
			defer r.close()
			for seq := uint32(0); seq < 5000; seq += 1000 {
				r.write(ours(seq, 1000), 0)
			}
			r.write(ours(4000, 1000), 0)
			r.wait(2 * timeoutGap)
			r.echoed(0, 5000)
			r.wait(tt.after)
			again := ours(0, 1000)
			again.Options = tcpframe.Stamped(6000, 1)
			r.write(again, 0)
			if got := r.echoed(1000, 6000); got != tt.want {
				t.Errorf("netstack gets %d, want %d", got, tt.want)
			}
		})
	}
}
