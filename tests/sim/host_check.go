package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

func (h *ourHost) check() error {
	errs := []error{h.checkCard()}
	if h.netdev != nil && h.slot.card() != nil {
		errs = append(errs, h.netdev.check())
	}
	if h.kernel != nil {
		errs = append(errs, h.kernel.check())
	}
	return errors.Join(append(errs, h.checkFrames())...)
}

// checkCard checks what the NIC has counted, and found wrong.
func (h *ourHost) checkCard() error {
	nic := h.slot.card()
	if nic == nil {
		return nil
	}
	counters := nic.Counters()
	errs := []error{h.checkWire(&counters)}
	if !h.plan.Device.Rings.DelayDrop { // a frame that waits for a buffer is in no counter yet
		errs = append(errs, counters.Check())
	}
	if v := nic.Violations(); len(v) > 0 {
		errs = append(errs, fmt.Errorf("the driver broke rules of the NIC: %s",
			strings.Join(v, "; ")))
	}
	return errors.Join(errs...)
}

// checkWire checks that the NIC has counted each frame that the switch gave it, or got of it.
func (h *ourHost) checkWire(c *simnic.Counters) error {
	came, handed, idle := h.port.counts()
	sent, got := h.slot.past()
	sent, got = sent+c.Wire.TxPackets+h.beside.sent.Load(),
		got+c.Wire.RxPackets+h.beside.got.Load()
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
	if h.stack == nil {
		return nil
	}
	return h.books.check(h.stack)
}

// deviceBooks are the devices that a stack has had, if frames are looked at.
type deviceBooks struct {
	last    *frameBooks // of the device that was there at the last check
	devices []*dv.Device
}

// check checks that each frame buffer of a stack's device has one owner.
func (b *deviceBooks) check(s *stack.Stack) error {
	if racing.Detector {
		return nil
	}
	dev := s.Device()
	if dev == nil {
		return nil
	}
	if b.last == nil || b.last.dev != dev {
		b.last = newFrameBooks(dev)
		b.devices = append(b.devices, dev)
	}
	return b.last.check()
}

// frames are how many the queues of all devices have received, and were given to send.
func (b *deviceBooks) frames() (received, sent uint64) {
	for _, d := range b.devices {
		stats := d.Stats()
		for i := range stats.Rx {
			received += stats.Rx[i].Packets
		}
		for i := range stats.Tx {
			sent += stats.Tx[i].Packets
		}
	}
	return received, sent
}

// inPlace counts the packets the queues of all devices have sent without copying.
func (b *deviceBooks) inPlace() (n uint64) {
	for _, d := range b.devices {
		for _, q := range d.Stats().Tx {
			n += q.InPlace
		}
	}
	return n
}

// held reports packets that devices which are closed hold still.
func (b *deviceBooks) held() error {
	for _, d := range b.devices {
		for i, q := range d.Stats().Tx {
			if q.Held != 0 {
				return fmt.Errorf("send queue %d holds %d packets, and is closed", i, q.Held)
			}
		}
	}
	return nil
}

func (h *ourHost) inPlace() uint64 { return h.books.inPlace() }

// drained reports what is left on the way when no connection is left: segments to send, or frames
// that the NIC has completed and the driver has not seen.
func (h *ourHost) drained() error {
	if n := h.stack.LinkStats().TxBacklog; n > 0 {
		return fmt.Errorf("%d segments wait for room in a send queue", n)
	}
	if err := h.checkLink(); err != nil {
		return err
	}
	if h.kernel != nil {
		if err := errors.Join(h.kernel.idle(), h.steered()); err != nil {
			return err
		}
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

// steered says what is wrong with frames that came by packet sockets beside rings that all rules
// were there for, all the time.
func (h *ourHost) steered() error {
	h.netdev.mu.Lock()
	defer h.netdev.mu.Unlock()
	if n := h.netdev.unsteered; n > 0 && h.rulesStay {
		return fmt.Errorf("%d frames that rules lead to rings came by packet sockets", n)
	}
	if _, left := h.rules(); len(left) > 0 {
		return fmt.Errorf("rules are left for ports that nobody has: %v", left)
	}
	return h.ruled()
}

// outOfBuffer is how many frames came that rings had no room for.
func (h *ourHost) outOfBuffer() uint64 { return h.stack.LinkStats().RxOutOfBuffer }
