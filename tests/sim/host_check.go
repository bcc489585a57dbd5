package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv/simnic"
)

func (h *ourHost) check() error {
	nic := h.slot.card()
	if nic == nil {
		return nil
	}
	counters := nic.Counters()
	errs := []error{h.checkWire(&counters)}
	if !h.plan.Device.DelayDrop { // a frame that waits for a buffer is in no counter yet
		errs = append(errs, counters.Check())
	}
	if v := nic.Violations(); len(v) > 0 {
		errs = append(errs, fmt.Errorf("the driver broke rules of the NIC: %s",
			strings.Join(v, "; ")))
	}
	if h.netdev != nil {
		errs = append(errs, h.netdev.check())
	}
	return errors.Join(append(errs, h.checkFrames())...)
}

// checkWire checks that the NIC has counted each frame that the switch gave it, or got of it.
func (h *ourHost) checkWire(c *simnic.Counters) error {
	came, handed, idle := h.port.counts()
	sent, got := h.slot.past()
	sent, got = sent+c.Wire.TxPackets, got+c.Wire.RxPackets
	if idle && (sent != came || got != handed) {
		return fmt.Errorf("the NIC has sent %d frames and got %d, the switch got %d and gave %d",
			sent, got, came, handed)
	}
	return nil
}

// checkFrames checks that each frame buffer has one owner.
func (h *ourHost) checkFrames() error {
	select {
	case <-h.opened:
	default:
		return nil
	}
	if h.stack == nil || raceDetector {
		return nil
	}
	dev := h.stack.Device()
	if dev == nil {
		return nil
	}
	if h.books == nil || h.books.dev != dev {
		h.books = newFrameBooks(dev)
		h.devices = append(h.devices, dev)
	}
	return h.books.check()
}

// drained reports what is left on the way when no connection is left: segments to send, or frames
// that the NIC has completed and the driver has not seen.
func (h *ourHost) drained() error {
	if n := h.stack.LinkStats().TxBacklog; n > 0 {
		return fmt.Errorf("%d segments wait for room in a send queue", n)
	}
	if err := h.checkLink(); err != nil {
		return err
	}
	dev := h.stack.Device()
	if h.faulty || dev == nil {
		return nil
	}
	seen := uint64(0)
	for _, q := range dev.Stats().Rx {
		seen += q.Packets
	}
	if c := h.slot.card().Counters(); c.Slice.RxPackets != seen {
		return fmt.Errorf("the NIC has completed %d frames and the driver has seen %d",
			c.Slice.RxPackets, seen)
	}
	return nil
}
