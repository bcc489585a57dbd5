package dv_test

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Events about queues reset the queue they name, and no other; those about
// objects that are gone, and unknown ones, do nothing.
func TestQueueEvents(t *testing.T) {
	for _, c := range []struct {
		name   string
		event  func(d *dv.Device) uverbs.AsyncEvent
		tx     [2]uint64 // resets of each send queue
		failed bool
	}{
		{"send queue pair", func(d *dv.Device) uverbs.AsyncEvent {
			_, qp := d.TxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp}
		}, [2]uint64{0, 1}, false},
		{"send completion queue", func(d *dv.Device) uverbs.AsyncEvent {
			cq, _ := d.TxHandles(0)
			return uverbs.AsyncEvent{Type: uverbs.EventCQError, Element: cq}
		}, [2]uint64{1, 0}, false},
		{"send queue pair of an earlier life", func(d *dv.Device) uverbs.AsyncEvent {
			_, qp := d.TxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp - 1<<32}
		}, [2]uint64{}, false},
		{"queue that does not exist", func(d *dv.Device) uverbs.AsyncEvent {
			_, qp := d.TxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp + 1}
		}, [2]uint64{}, false},
		{"receive queue of an earlier life", func(d *dv.Device) uverbs.AsyncEvent {
			_, wq := d.RxHandles(1)
			return uverbs.AsyncEvent{Type: uverbs.EventWQFatal, Element: wq}
		}, [2]uint64{}, false},
		{"receive completion queue", func(d *dv.Device) uverbs.AsyncEvent {
			cq, _ := d.RxHandles(0)
			return uverbs.AsyncEvent{Type: uverbs.EventCQError, Element: cq}
		}, [2]uint64{}, true},
		{"unknown number", func(d *dv.Device) uverbs.AsyncEvent {
			return uverbs.AsyncEvent{Type: 99, Element: 1}
		}, [2]uint64{}, false},
		{"another port", func(d *dv.Device) uverbs.AsyncEvent {
			return uverbs.AsyncEvent{Type: uverbs.EventPortError, Element: 2}
		}, [2]uint64{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}})
			d.Tell(c.event(d))
			if failed := d.Err() != nil; failed != c.failed || failed &&
				!errors.Is(d.Err(), dv.ErrFailed) {
				t.Fatalf("Err: %v", d.Err())
			}
			if c.failed {
				return
			}
			for i := range 2 {
				poll(d.Rx(i))
				d.Tx(i).Reclaim()
				if rx, tx := d.Rx(i).Stats().Resets,
					d.Tx(i).Stats().Resets; rx != 0 || tx != c.tx[i] {
					t.Errorf("queue %d: %d and %d resets, want none and %d", i, rx, tx, c.tx[i])
				}
				exchange(t, s, d, d.Tx(i))
			}
			if !d.LinkUp() {
				t.Error("link down")
			}
		})
	}
}

// TestReceiveQueueEvents: a receive queue is reset once for an error, whether a completion tells of
// it, an event, or both; and a late event about an error that is mended resets nothing. Linux 5.4
// does not say which queue an event is about.
func TestReceiveQueueEvents(t *testing.T) {
	for _, c := range []struct {
		name    string
		unnamed bool
		lost    bool // completions are lost while the ring fails
		events  int
		resets  uint64
	}{
		{"completion", false, false, 0, 1},
		{"event", false, true, 1, 1},
		{"unnamed event", true, true, 1, 1},
		{"completion, then its event", false, false, 1, 1},
		{"completion, then its event, unnamed", true, false, 1, 1},
		{"event twice", false, true, 2, 1},
		{"unnamed event twice", true, true, 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
			f := flows(1)["UDP over IPv4"]
			i := d.QueueFor(f)
			frame := packet(f.Src, f.Dst, f.Proto, 100)
			s.nic.SetHooks(&simnic.Hooks{
				Deliver:  func(*simnic.RQ) (bool, uint8, uint8) { return false, 4, 0 },
				Complete: func(*simnic.CQ) (lose, hold bool) { return c.lost, false },
			})
			s.wire.send(t, frame)
			s.nic.SetHooks(nil)
			poll(d.Rx(i))
			for range c.events {
				e := uverbs.AsyncEvent{Type: uverbs.EventWQFatal}
				if !c.unnamed {
					_, e.Element = d.RxHandles(i)
				}
				d.Tell(e)
				if err := d.Rx(i).Wait(); err != nil { // woken to handle it
					t.Error(err)
				}
				poll(d.Rx(0))
				poll(d.Rx(1))
			}
			s.wire.send(t, frame)
			if n := len(poll(d.Rx(i))); n != 1 {
				t.Errorf("%d frames after the error", n)
			}
			if got, other := d.Rx(i).Stats().Resets, d.Rx(1-i).Stats().Resets; got != c.resets ||
				other != 0 {
				t.Errorf("%d resets and %d of the other queue, want %d and none", got, other,
					c.resets)
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
