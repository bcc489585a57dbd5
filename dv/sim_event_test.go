package dv_test

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Events about queues reset the queue they name, and no other; those about
// objects that are gone, and unknown ones, do nothing.
func TestQueueEvents(t *testing.T) {
	for _, c := range []struct {
		name   string
		event  func(d *dv.Device) uverbs.AsyncEvent
		rx, tx [2]uint64 // resets of each queue
		failed bool
	}{
		{"send queue pair", func(d *dv.Device) uverbs.AsyncEvent {
			_, qp := d.TxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp}
		}, [2]uint64{}, [2]uint64{0, 1}, false},
		{"send completion queue", func(d *dv.Device) uverbs.AsyncEvent {
			cq, _ := d.TxHandles(0)
			return uverbs.AsyncEvent{Type: uverbs.EventCQError, Element: cq}
		}, [2]uint64{}, [2]uint64{1, 0}, false},
		{"send queue pair of an earlier life", func(d *dv.Device) uverbs.AsyncEvent {
			_, qp := d.TxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp - 1<<32}
		}, [2]uint64{}, [2]uint64{}, false},
		{"queue that does not exist", func(d *dv.Device) uverbs.AsyncEvent {
			_, qp := d.TxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp + 1}
		}, [2]uint64{}, [2]uint64{}, false},
		{"receive queue", func(d *dv.Device) uverbs.AsyncEvent {
			_, wq := d.RxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventWQFatal, Element: wq}
		}, [2]uint64{0, 1}, [2]uint64{}, false},
		{"receive queue, unnamed by linux 5.4", func(d *dv.Device) uverbs.AsyncEvent {
			return uverbs.AsyncEvent{Type: uverbs.EventWQFatal}
		}, [2]uint64{1, 1}, [2]uint64{}, false},
		{"receive completion queue", func(d *dv.Device) uverbs.AsyncEvent {
			cq, _ := d.RxHandles(0)
			return uverbs.AsyncEvent{Type: uverbs.EventCQError, Element: cq}
		}, [2]uint64{}, [2]uint64{}, true},
		{"unknown number", func(d *dv.Device) uverbs.AsyncEvent {
			return uverbs.AsyncEvent{Type: 99, Element: 1}
		}, [2]uint64{}, [2]uint64{}, false},
		{"another port", func(d *dv.Device) uverbs.AsyncEvent {
			return uverbs.AsyncEvent{Type: uverbs.EventPortError, Element: 2}
		}, [2]uint64{}, [2]uint64{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, d := usual(t, dv.Config{RxQueues: 2, TxQueues: 2})
			d.Tell(c.event(d))
			if failed := d.Err() != nil; failed != c.failed || failed &&
				!errors.Is(d.Err(), dv.ErrFailed) {
				t.Fatalf("Err: %v", d.Err())
			}
			if c.failed {
				return
			}
			for i := range 2 {
				if c.rx[i] > 0 {
					if err := d.Rx(i).Wait(); err != nil { // woken to handle it
						t.Error(err)
					}
				}
				poll(d.Rx(i))
				d.Tx(i).Reclaim()
				if rx, tx := d.Rx(i).Stats().Resets,
					d.Tx(i).Stats().Resets; rx != c.rx[i] || tx != c.tx[i] {
					t.Errorf("queue %d: %d and %d resets, want %d and %d",
						i, rx, tx, c.rx[i], c.tx[i])
				}
				exchange(t, s, d, d.Tx(i))
			}
			if !d.LinkUp() {
				t.Error("link down")
			}
		})
	}
}

// told waits for changes of the link.
func told(t *testing.T, d *dv.Device, up bool) {
	t.Helper()
	if <-d.LinkChanged(); d.LinkUp() != up {
		t.Errorf("told of the link, whose state is up: %v", !up)
	}
}
