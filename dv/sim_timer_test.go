package dv_test

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// TestCloseStopsTimers: receive queues that are about to be reset, or to report resets, set timers.
// None is left when the device is closed (world 2319 of make sim).
func TestCloseStopsTimers(t *testing.T) {
	virtual := clocktest.New()
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d, err := dv.Open(t.Context(), s.config(dv.Config{Clock: virtual.Clock()}))
	if err != nil {
		t.Fatal(err)
	}
	const resets = 8 // the last ones are put off
	fault := s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultReceiveError, Syndrome: 4})
	for range resets {
		s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 100))
		poll(d.Rx(0))
	}
	fault.Remove()
	if n, resets := virtual.Timers(), d.Rx(0).Stats().Resets; n != 2 {
		t.Errorf("%d timers after %d resets, want one for a reset and one for a line of log", n,
			resets)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := virtual.Timers(); n != 0 {
		t.Errorf("%d timers are left", n)
	}
}
