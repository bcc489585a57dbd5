package failover

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// TestSwitchesCounted: each change of the backend is counted by what it was from, to, and for. How
// long opening took is kept.
func TestSwitchesCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rings, packet, none = rdma.BackendRings, rdma.BackendPacket, rdma.BackendNone
		w := start(t, Config{}, true)
		first := w.link.Status()
		w.signals <- Signal{Gone: true, Name: "mlx5_0"}
		time.Sleep(firstPause)
		w.is(Up, rings)
		w.devices[1].fail(errGone)
		synctest.Wait()
		w.set(func() { w.noPort = errGone })
		w.ports[0].fail(errGone)
		synctest.Wait()
		w.is(Fallback, none)
		w.set(func() { w.noPort, w.refuse = nil, errGone })
		time.Sleep(longestPause)
		w.is(Fallback, packet)
		gate := make(chan struct{})
		w.set(func() { w.refuse, w.gate = nil, gate })
		w.link.Recover()
		time.Sleep(time.Minute)
		close(gate)
		w.is(Up, rings)
		s := w.link.Status()
		want := map[Switch]uint64{{rings, packet, DeviceRemoved}: 1,
			{packet, rings, DeviceReturned}: 2, {rings, packet, DeviceFailed}: 1,
			{packet, none, PortLost}: 1, {none, packet, PortReturned}: 1}
		if !reflect.DeepEqual(s.Switches, want) || len(first.Switches) != 0 {
			t.Errorf("%v, at first %v", s.Switches, first.Switches)
		}
		if s.OpenTook < time.Minute-time.Second || s.OpenTook > time.Minute || s.FallbackTook < 0 {
			t.Errorf("opening took %v, falling back %v", s.OpenTook, s.FallbackTook)
		}
		w.shut()
	})
}

// TestFallbackTook tells how long it took until frames were sent from how long until they were
// received, for which the endpoint delivers what the device had received.
func TestFallbackTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const draining = 300 * time.Millisecond
		w := start(t, Config{}, true)
		w.set(func() { w.draining, w.refuse = draining, errGone })
		w.devices[0].fail(errGone)
		time.Sleep(2 * draining)
		w.is(Fallback, rdma.BackendPacket)
		if s := w.link.Status(); s.FallbackTook != 0 || s.ReceiveTook != draining {
			t.Errorf("sending took %v, receiving %v", s.FallbackTook, s.ReceiveTook)
		}
		w.shut()
	})
}
