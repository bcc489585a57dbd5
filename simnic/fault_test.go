package simnic

import "testing"

// Engines test one pointer per event when no fault is in force.
func TestRemovedFaultsLeaveNoHook(t *testing.T) {
	n := newNIC(t, Config{})
	send, starve := n.Inject(QueueFault{Kind: FaultSendError}),
		n.Inject(QueueFault{Kind: FaultStarve})
	if h := n.hooks.Load(); h == nil || h.SendWQE == nil || h.Deliver == nil {
		t.Fatalf("hooks of two faults: %+v", h)
	}
	send.Remove()
	if h := n.hooks.Load(); h == nil || h.SendWQE != nil {
		t.Errorf("hooks after one was removed: %+v", h)
	}
	starve.Remove()
	starve.Remove()
	if h := n.hooks.Load(); h != nil {
		t.Errorf("hooks after both were removed: %+v", h)
	}
}
