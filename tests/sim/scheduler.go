package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// until goes on until done, for limit of virtual time at most. Every invariant is checked after
// every step.
func (w *world) until(done func() bool, limit time.Duration) error {
	for end := w.clock.now() + limit; ; {
		if err := w.rest(); err != nil {
			return err
		}
		switch {
		case done():
			return nil
		case w.clock.now() > end:
			return fmt.Errorf("no end within %v: %s", limit, w.waiting())
		}
		if err := w.stall(); err != nil {
			return err
		}
		if w.steps++; w.steps > maxSteps {
			return fmt.Errorf("no end within %d timers: %s", maxSteps, w.waiting())
		}
		if !w.clock.Step() {
			return fmt.Errorf("nothing can happen any more: no timer is left: %s", w.waiting())
		}
		w.stepped()
	}
}

// stepped takes note of a timer that has fired, and collects garbage now and then, while nothing
// else runs.
func (w *world) stepped() {
	now := w.clock.now()
	w.net.note(uint64(now))
	if w.plan.Step != nil {
		w.plan.Step(now)
	}
	if w.steps%tidyEvery == 0 {
		tidy()
	}
}

// rest lets everything happen that can at this point of time.
func (w *world) rest() error {
	for {
		if err := w.settle.settle(&w.calls); err != nil {
			return err
		}
		if err := w.check(); err != nil {
			return err
		}
		for _, h := range w.hosts {
			h.send()
		}
		landed := w.net.land()
		if !w.net.move() && !landed {
			return nil
		}
	}
}

// check looks at all invariants that hold at any time.
func (w *world) check() error {
	errs := []error{w.net.count.check(), w.net.wrong}
	for i, h := range w.hosts {
		if err := h.check(); err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", i, err))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(append(errs, w.failed...)...)
}

// silence is how long no frame may move while there is work.
const silence = 5 * time.Second

// keepAlive is after how long a peer that only reads asks whether its connection is still there.
const keepAlive = 15 * time.Second

// longestRTO is netstack's.
const longestRTO = 2 * time.Minute

// synPauses is how long a client may wait, in all, to whom a full backlog does not answer at first:
// it asks after 1, 2, 4 and 8 s.
const synPauses = 15 * time.Second

// timeWait is how long a server's end may be alone: an ACK that ends a handshake with a SYN cookie,
// and comes late, opens the connection a second time when that has been closed meanwhile. The peer
// answers with ACKs of what this end has not sent, and after TIME-WAIT with a reset (Linux, too).
// The retransmissions that it answers are half as far apart by then.
const timeWait = 60 * time.Second

// stall reports that nothing has moved for too long although there is work.
func (w *world) stall() error {
	now := w.clock.now()
	if now < w.calm || w.began == 0 {
		return nil
	}
	limit := silence
	if w.plan.harmful() {
		limit += 2 * (w.calm - w.began) // retransmission timeouts have doubled
	}
	if w.plan.resets() {
		limit += resetLimit
	}
	if w.plan.cuts() || w.plan.kills() {
		limit += keepAlive
	}
	if w.plan.moves() {
		limit += 2 * longestRTO
	}
	if w.plan.drops() {
		limit += synPauses
		if w.plan.harmful() {
			limit += timeWait
		}
	}
	w.mu.Lock()
	busy, awake := w.sleeping == 0 && w.busy(), w.awake
	w.mu.Unlock()
	if silent := now - max(w.net.moved, w.calm, awake); busy && silent > limit {
		return fmt.Errorf("no frame has moved for %v: %s", silent, w.waiting())
	}
	return nil
}

// busy says whether a task is under way; w.mu is held.
func (w *world) busy() bool {
	for _, t := range w.tasks {
		if !t.done && !t.patient {
			return true
		}
	}
	return false
}

// waiting describes what has not returned.
func (w *world) waiting() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, t := range w.tasks {
		if !t.done {
			list = append(list, fmt.Sprintf("%s: %s since %v", t.name, t.call, t.since))
		}
	}
	if eps := w.endpointList(); eps != "" {
		list = append(list, eps)
	}
	return strings.Join(list, "; ")
}
