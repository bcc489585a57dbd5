package dv

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A process that takes over from another has the same MAC on the same port. Rules of equal match
// and priority cannot be two processes', so that the newcomer's come ahead of the other's first,
// and move to its places once they are free:
//
//	priority   0 to 2           3 to 7
//	           -                of the process before
//	TakeOver   the newcomer's   of the process before, which get nothing
//	           the newcomer's   -                        it has ended
//	Settle     -                the newcomer's
//
// If the newcomer ends before Settle, the other one's rules get the frames again.

// takesOver says whether a device has no rules of the usual priorities yet. Called with the lock
// held.
func (d *Device) takesOver(h *hashed) bool {
	return d.config.TakesOver && !d.config.HostMode &&
		(h.other == nil || h.restPriority != otherPriority)
}

// TakeOver leads the unicast frames of our MAC here, ahead of another process's rules for it, from
// now on. Without Config.TakesOver, and when called again, it does nothing. unix.EADDRINUSE: a
// third process does so already.
func (d *Device) TakeOver() error {
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	if !d.takesOver(h) || h.other != nil {
		return nil
	}
	return d.explainEqual(h.claimMAC(d, takeOverPriority, takeOverPriority+hashedPriorities))
}

// Settle ends what TakeOver began: our rules take the places of those of the process before, which
// has ended, or at least closed its device. unix.EADDRINUSE: it has not, and nothing changes. No
// frame is lost or doubled. Without TakeOver before it does nothing.
func (d *Device) Settle() error {
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	if !d.takesOver(h) || h.other == nil {
		return nil
	}
	ahead := &hashed{rules: h.rules, other: h.other}
	h.rules, h.other = nil, nil
	if err := h.claimMAC(d, firstPriority, otherPriority); err != nil {
		h.rules, h.other = ahead.rules, ahead.other
		return d.explainEqual(err)
	}
	return ahead.endRules()
}

// explainEqual makes the kernel's EEXIST about a rule for our MAC a sentence.
func (d *Device) explainEqual(err error) error {
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	return &refusal{unix.EADDRINUSE, err,
		fmt.Sprintf("another process has rules for MAC %v on this port", d.MAC())}
}
