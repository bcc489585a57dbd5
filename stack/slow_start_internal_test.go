package stack

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// TestSlowStartDue: slow start begins again where it has ended and the round trip is short.
func TestSlowStartDue(t *testing.T) {
	const least, ms = 20 * time.Millisecond, time.Millisecond
	ended := func(rtt time.Duration, state tcpip.CongestionControlState, ssthresh,
		cwnd uint32) *tcpip.TCPInfoOption {
		return &tcpip.TCPInfoOption{RTT: rtt, CcState: state, SndSsthresh: ssthresh, SndCwnd: cwnd}
	}
	for _, tt := range []struct {
		name string
		info *tcpip.TCPInfoOption
		want bool
	}{
		{"ended, and the round trip is short", ended(21*ms, tcpip.Open, 30, 40), true},
		{"it goes on", ended(21*ms, tcpip.Open, 1<<31, 40), false},
		{"a queue has built up", ended(25*ms, tcpip.Open, 30, 40), false},
		{"in a recovery", ended(21*ms, tcpip.SACKRecovery, 30, 40), false},
	} {
		if got := (&slowStart{least: least}).endedForNothing(tt.info); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if (&slowStart{least: ms}).endedForNothing(ended(ms, tcpip.Open, 30, 40)) {
		t.Error("within a rack")
	}
}
