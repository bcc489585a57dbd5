package dv

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// watchEvents reads what the device says unasked, until the context is closed
// or the device is gone.
func (d *Device) watchEvents() {
	for {
		e, err := d.context.AsyncEvents().ReadEvent()
		if errors.Is(err, uverbs.ErrClosed) {
			return
		}
		if err != nil {
			d.failWith(fmt.Errorf("read events of the device: %w", err))
			return
		}
		d.onEvent(e)
	}
}

// watchCommands ends the device when a command was answered as those of a lost device are and the
// next one is, too. One alone may be a command that the firmware could not carry out.
func (d *Device) watchCommands() {
	for {
		select {
		case <-d.done:
			return
		case <-d.context.Refused():
		}
		if _, err := d.context.QueryPort(d.port); uverbs.IsGone(err) {
			d.failWith(fmt.Errorf("it refuses all commands: %w", err))
		}
	}
}

// onEvent acts on one event. Queues recover on their owners' goroutines: they are only told.
func (d *Device) onEvent(e uverbs.AsyncEvent) {
	switch e.Type {
	case uverbs.EventPortActive, uverbs.EventPortError:
		d.onLink(e)
	case uverbs.EventDeviceFatal:
		d.failWith(errors.New(
			"the device died or was removed: look in dmesg and devlink health, then open it again"))
	case uverbs.EventCQError, uverbs.EventQPFatal, uverbs.EventQPReqError,
		uverbs.EventQPAccess, uverbs.EventWQFatal:
		d.onQueueError(e)
	default:
		d.log.Debug("event of the device ignored", "device", d.Name(), "event", e.String())
	}
}

// onLink follows the state of our port; a card may tell of others.
func (d *Device) onLink(e uverbs.AsyncEvent) {
	if e.Element != uint64(d.port) {
		return
	}
	up := e.Type == uverbs.EventPortActive
	d.linkUp.Store(up)
	d.linkChanges.Add(1)
	select {
	case d.linkChanged <- struct{}{}:
	default:
	}
	d.log.Info("link changed", "device", d.Name(), "up", up)
}

// onQueueError raises a signal to the owner of the queue that e names. An event about an
// object that has been replaced since is late and means nothing.
func (d *Device) onQueueError(e uverbs.AsyncEvent) {
	d.log.Debug("queue error reported by the device", "device", d.Name(), "event", e.String())
	kind, i, generation := parseHandle(e.Element)
	switch {
	case kind == handleRxCQ:
		d.failWith(fmt.Errorf("completion queue of receive queue %d is in error", i))
	case kind == handleRxWQ && i < len(d.rx):
		d.resetRx(d.rx[i])
	case (kind == handleTxCQ || kind == handleTxQP) && i < len(d.tx) &&
		generation == d.txObjects[i].generation.Load()&generationMask:
		d.tx[i].signals.raiseBits(signalReset)
	case e.Type == uverbs.EventWQFatal && e.Element == 0: // linux 5.4 does not say which
		for _, q := range d.rx {
			d.resetRx(q)
		}
	}
}

// resetRx has a queue reset if it is in error.
func (d *Device) resetRx(q *RxQueue) {
	q.signals.raiseBits(signalReset | signalInError)
	q.Wake()
}
