package uverbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// object is the common part of all kernel objects. A handle is an index into the table of the
// opened node; 0 is a valid one.
type object struct {
	c      *Context
	noun   string // for messages: "completion queue of 1024 entries"
	handle uint32
	pinned uint64 // bytes of the caller's memory the kernel holds for it

	gone bool // guarded by c.mu
}

// Handle returns the kernel's handle of the object, unique among the existing objects of the
// context.
func (o *object) Handle() uint32 { return o.handle }

// destroyOnce runs the destroying command once. The object stays, and may be closed again, if the
// kernel still has it.
func (o *object) destroyOnce(w write) error {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	if o.gone || o.c.kernel == nil {
		return nil
	}
	w.noun = o.noun
	err := o.c.writeLocked(w)
	o.settleDestroy(err)
	return err
}

// settleDestroy records the outcome err of a destroying command; c.mu is held.
func (o *object) settleDestroy(err error) {
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EIO) {
		o.gone = true
		o.c.pinned -= o.pinned
	}
}

// checkUsable returns nil if commands on the object are possible; c.mu is held.
func (o *object) checkUsable() error {
	if o.gone || o.c.kernel == nil {
		return fmt.Errorf("use %s: %w", o.noun, ErrClosed)
	}
	return nil
}

// completeNew completes a new object after its creating command; c.mu is held.
func (o *object) completeNew(c *Context, w write, handle uint32) {
	o.c, o.noun, o.handle, o.pinned = c, w.noun, handle, w.needs
	c.pinned += w.needs
}
