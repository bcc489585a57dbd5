package tcpfix

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestSYNBurst has SYNs sent after so many milliseconds each, and compares which are dropped.
func TestSYNBurst(t *testing.T) {
	type syn struct {
		after int // ms since the one before
		seq   uint32
		flags header.TCPFlags
		drop  bool
	}
	const flag, ack = header.TCPFlagSyn, header.TCPFlagAck
	for _, tc := range []struct {
		name string
		syns []syn
	}{
		{"as ever", []syn{{0, 1, flag, false}, {1000, 1, flag, false}, {2000, 1, flag, false}}},
		{"once more at once", []syn{{0, 1, flag, false}, {1, 1, flag, false},
			{1, 1, flag, true}, {50, 1, flag, true}, {49, 1, flag, false}, {99, 1, flag, true},
			{1, 1, flag, false}}},
		{"another connection", []syn{{0, 1, flag, false}, {1, 1, flag, false},
			{1, 2, flag, false}, {1, 2, flag, false}, {1, 2, flag, true}}},
		{"SYN-ACKs", []syn{{0, 1, flag | ack, false}, {0, 1, flag | ack, false},
			{0, 1, flag | ack, false}}},
		{"other segments", []syn{{0, 1, flag, false}, {0, 1, flag, false}, {0, 1, ack, false},
			{0, 1, header.TCPFlagRst, false}}},
	} {
		var clock virtualClock
		x := newSYNBurstFix(&clock)
		for i, s := range tc.syns {
			clock.now += time.Duration(s.after) * time.Millisecond
			f := ours(s.seq, 0)
			f.Flags = s.flags
			pkt := packetOf(f)
			p := hdr.ParseSent(pkt, testSeed)
			if got := x.sent(&p); got != s.drop {
				t.Errorf("%s: %d dropped: %v", tc.name, i, got)
			}
			pkt.DecRef()
		}
	}
}

// TestSYNBurstOfTwo: one peer's SYNs do not count for another's.
func TestSYNBurstOfTwo(t *testing.T) {
	x := newSYNBurstFix(new(virtualClock))
	for i := range 6 {
		f := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: byte(i % 3),
			Ports: [2]uint16{4000, 80}, TTL: 64, Seq: 1, Flags: header.TCPFlagSyn}
		pkt := packetOf(f)
		p := hdr.ParseSent(pkt, testSeed)
		if x.sent(&p) {
			t.Errorf("%d dropped", i)
		}
		pkt.DecRef()
	}
}

// TestLeftOut sends a SYN a third time at once, and the reset of a connection that is being ended:
// neither leaves, and both are counted.
func TestLeftOut(t *testing.T) {
	flows := flowsOf(t)
	defer flows.Close()
	sent := func(flags header.TCPFlags) (drop bool) {
		f := ours(1, 0)
		f.Flags = flags
		pkt := packetOf(f)
		defer pkt.DecRef()
		p := hdr.ParseSent(pkt, flows.Key())
		_, drop = flows.Sent(pkt, &p)
		return drop
	}
	for i, want := range []bool{false, false, true} {
		if got := sent(header.TCPFlagSyn); got != want {
			t.Errorf("SYN %d dropped: %v", i, got)
		}
	}
	pkt := packetOf(ours(1, 0))
	defer pkt.DecRef()
	p := hdr.ParseSent(pkt, flows.Key())
	flows.EndTimeWait(&p, func() {
		if !sent(header.TCPFlagRst) {
			t.Error("the reset of a connection that is being ended is sent")
		}
	})
	if sent(header.TCPFlagRst) {
		t.Error("a later reset is dropped")
	}
	if c := flows.Counts(); c.LeftOut != 2 || c.Spared != 0 {
		t.Errorf("counts %+v", c)
	}
}
