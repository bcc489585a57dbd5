package stack

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
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

// TestSlowStartOver: a connection of which lookAt says false is not begun anew by its next write.
func TestSlowStartOver(t *testing.T) {
	g := gstack.New(gstack.Options{
		NetworkProtocols:   []gstack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocol}})
	defer g.Destroy()
	var wq waiter.Queue
	ep, terr := g.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	if terr != nil {
		t.Fatal(terr)
	}
	o := slowStarts{clock: clock.Clock{}}
	defer o.close()
	o.noteFull(ep)
	c := ep.(*tcp.Endpoint)
	first := o.all[c]
	first.times = maxSlowStarts
	o.lookAtAll() // not established: never due
	o.noteFull(ep)
	if o.all[c] != first {
		t.Errorf("begun anew, times %d", o.all[c].times)
	}
}
