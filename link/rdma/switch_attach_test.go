package rdma

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// attaching is rings whose endpoint is attached in the middle of the change to them.
type attaching struct {
	rings
	attach func()
}

func (a *attaching) txQueue(i int) txQueue {
	a.attach()
	return a.rings.txQueue(i)
}

// TestSwitchAttaches has the stack attach while the endpoint changes to more queues: the workers of
// all of them start.
func TestSwitchAttaches(t *testing.T) {
	_, devs := devices(t, setup{})
	dev, peer := another(t, func(c *dv.Config) { c.RxQueues = 3 })
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	got := newSink()
	attach := func() {
		e.Attach(got)
		e.mu.Lock()
		g := e.workers
		e.mu.Unlock()
		g.replace()
		g.running.Wait()
	}
	if err := e.Switch(Backend{&attaching{rings{dev}, attach}}); err != nil {
		t.Fatal(err)
	}
	post(t, peer.Tx(0), arpFrame())
	got.await(t, 1)
}
