package stack

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// ruleState is where the rules of a newcomer's device are, which another device has from it once
// the first is lost.
type ruleState uint8

const (
	rulesAway    ruleState = iota // there are none
	rulesAhead                    // of the predecessor's
	rulesSettled                  // in their places
)

// setRules moves the rules on. A device that has failed needs none: its successor gets them.
func (t *taking) setRules(to ruleState) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rules >= to {
		return nil
	}
	if err := to.apply(t.device); err != nil {
		return err
	}
	if h := t.s.host; h != nil {
		if err := h.moveRules(to); err != nil {
			return err
		}
	}
	t.rules = to
	return nil
}

func (r ruleState) apply(dev *dv.Device) error {
	if dev == nil || r == rulesAway {
		return nil
	}
	err := dev.TakeOver()
	if err == nil && r == rulesSettled {
		err = dev.Settle()
	}
	if dev.Err() != nil {
		return nil
	}
	return err
}

// useDevice gives a device that was opened the rules of the one before.
func (s *Stack) useDevice(dev *dv.Device) error {
	t := s.taking
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.device = dev
	return t.rules.apply(dev)
}

// settlePause says how often it is tried to take the places of the predecessor's rules: the kernel
// may still be at work on its end.
const settlePause = 20 * time.Millisecond

// settle puts the rules where the predecessor's were, once these are gone, or until the stack ends.
func (t *taking) settle() {
	for !t.s.closed.Load() {
		err := t.setRules(rulesSettled)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			t.s.log.Warn("rules stay ahead of their places", "interface", t.s.name, "error", err)
			return
		}
		if t.s.clock.Sleep(t.s.ctx, settlePause) != nil {
			return
		}
	}
}
