package stack

import (
	"reflect"
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

// TestHeldThreshold: timeouts one after the other leave half of the window that there was before.
func TestHeldThreshold(t *testing.T) {
	x := new(slowStart)
	for i, step := range []struct {
		state          tcpip.CongestionControlState
		ssthresh, cwnd uint32
		want           uint32
	}{
		{tcpip.Open, 1 << 31, 400, 0},
		{tcpip.SACKRecovery, 2, 5, 0}, // its own threshold counts when it is over
		{tcpip.RTORecovery, 280, 1, 0},
		{tcpip.RTORecovery, 2, 1, 200},
		{tcpip.RTORecovery, 2, 1, 200},
		{tcpip.RTORecovery, 200, 8, 0},
		{tcpip.Open, 60, 100, 0}, // what two losses leave
		{tcpip.Open, 2, 5, 50},
		{tcpip.Open, 2, 5, 25}, // the path has become that narrow
		{tcpip.Open, 4, 6, 0},
	} {
		info := tcpip.TCPInfoOption{CcState: step.state, SndSsthresh: step.ssthresh,
			SndCwnd: step.cwnd}
		if got := x.heldThreshold(&info); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
}

// TestSlowStartOver: a connection is looked at until it has written nothing for a while.
func TestSlowStartOver(t *testing.T) {
	ep, g := newEndpoint(t)
	fields := findTCPFields(reflect.TypeFor[tcp.Endpoint]())
	o := slowStarts{clock: clock.Clock{}, net: g, fields: &fields}
	defer o.close()
	o.noteFull(ep)
	for c := range o.all {
		o.lookAtAll()
		o.noteFull(c)
		if o.lookAtAll(); len(o.all) != 1 {
			t.Error("forgotten while it writes")
		}
	}
	if o.lookAtAll(); len(o.all) != 0 {
		t.Error("it is not forgotten")
	}
}

// newEndpoint returns one of TCP that is not connected, and its netstack.
func newEndpoint(t *testing.T) (*tcp.Endpoint, *gstack.Stack) {
	g := gstack.New(gstack.Options{
		NetworkProtocols:   []gstack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocol}})
	t.Cleanup(g.Destroy)
	ep, terr := g.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, new(waiter.Queue))
	if terr != nil {
		t.Fatal(terr)
	}
	t.Cleanup(ep.Close)
	return ep.(*tcp.Endpoint), g
}

// TestCubicWindow: the window is CUBIC's, at most half as large again, and never smaller.
func TestCubicWindow(t *testing.T) {
	c := tcp.TCPCubicState{C: 0.4, K: 4, WMax: 100}
	for _, tt := range []struct {
		elapsed time.Duration
		cwnd    int
		want    int
	}{
		{0, 70, 74}, {2 * time.Second, 80, 96}, {4 * time.Second, 96, 100},
		{4 * time.Second, 110, 110}, {9 * time.Second, 140, 150}, {time.Minute, 100, 150},
	} {
		if got := cubicWindow(&c, tt.elapsed, tt.cwnd); got != tt.want {
			t.Errorf("%v after a loss, window %d: %d, want %d", tt.elapsed, tt.cwnd, got, tt.want)
		}
	}
}
