package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Context is one process's use of a device: the opened node after GET_CONTEXT. Its methods, and
// those of the objects created through it, may be called concurrently; commands run one at a time.
type Context struct {
	driver uint32
	caps   DeviceCaps
	async  *AsyncEvents
	uars   []*Page
	env    func() (Environment, error)

	clock   clock.Clock
	refused chan struct{} // of capacity 1

	mu       sync.Mutex
	commands Commands
	kernel   Kernel                    // nil once closed
	scratch  *mmio.Region              // memory for commands
	channels map[*CompChannel]struct{} // open ones
	pinned   uint64                    // bytes pinned for all objects
}

// Caps returns the capabilities of the device and its kernel driver, as reported when the context
// was opened.
func (c *Context) Caps() DeviceCaps { return c.caps }

// AsyncEvents returns the source of events about queues, ports and the device. It ends with the
// context.
func (c *Context) AsyncEvents() *AsyncEvents { return c.async }

// Pinned returns how many bytes of the caller's memory the kernel holds for objects of this
// context: memory regions, rings and doorbell records, in whole pages.
func (c *Context) Pinned() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pinned
}

// Commands counts what the kernel was asked to do with a device.
type Commands struct {
	Count uint64
	Took  time.Duration // inside the kernel, all in all
}

// Commands returns what has been asked through the context so far.
func (c *Context) Commands() Commands {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commands
}

// Refused has a token in it when a command was answered with EIO or ENODEV since the last one was
// taken. Every command is, once the device has failed or is being removed (linux
// drivers/infiniband/core/uverbs_main.c, ib_uverbs_free_hw_resources), before the asynchronous
// events tell so; a command that the firmware could not carry out may be as well. It is for one
// reader and is never closed.
func (c *Context) Refused() <-chan struct{} { return c.refused }

// IsGone reports whether err is what a device answers with that has failed or is being removed.
func IsGone(err error) bool { return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODEV) }

// Close unmaps the doorbell pages, closes all event descriptors (their readers return ErrClosed)
// and closes the node. The kernel then destroys all remaining objects in the right order. The
// caller must have stopped ringing doorbells. Memory given to objects may be freed afterwards.
// Closing again returns nil.
func (c *Context) Close() error {
	c.mu.Lock()
	k := c.kernel
	if k == nil {
		c.mu.Unlock()
		return nil
	}
	c.kernel = nil
	channels := c.channels
	c.channels, c.pinned = nil, 0
	scratch := c.scratch
	c.mu.Unlock()

	first := new(firstError)
	for _, p := range c.uars {
		first.keepFirst(p.Close())
	}
	for ch := range channels {
		first.keepFirst(ch.events.close())
	}
	if c.async != nil {
		first.keepFirst(c.async.events.close())
	}
	first.keepFirst(k.Close())
	first.keepFirst(scratch.Close())
	if first.err != nil {
		return fmt.Errorf("close device: %w", first.err)
	}
	return nil
}

// firstError records the first error of several steps that all run.
type firstError struct{ err error }

func (f *firstError) keepFirst(err error) {
	if f.err == nil {
		f.err = err
	}
}

// runWrite runs one command whose objects all exist.
func (c *Context) runWrite(w write) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writeLocked(w)
}

// runCreate runs a creating command and completes o, whose handle in the reply is at *handle.
func (c *Context) runCreate(o *object, handle *uint32, w write) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeLocked(w); err != nil {
		return err
	}
	o.completeNew(c, w, *handle)
	return nil
}

// writeLocked is write with c.mu held.
func (c *Context) writeLocked(w write) error {
	attrs, decode := w.ioctlAttrs()
	if err := c.callLocked(w.op, w.noun, w.uses, w.needs, ObjectDevice,
		MethodInvokeWrite, attrs); err != nil {
		return err
	}
	decode()
	return nil
}

// callLocked runs one command of any kind with c.mu held.
func (c *Context) callLocked(o *op, noun string, uses []*object, needs uint64,
	object, method uint16, attrs []attr) error {
	if c.kernel == nil {
		return fmt.Errorf("%s %s: %w", o.verb, noun, ErrClosed)
	}
	for _, u := range uses {
		if err := u.checkUsable(); err != nil {
			return fmt.Errorf("%s %s: %w", o.verb, noun, err)
		}
	}
	began := c.clock.Now()
	err := exchangeCmd(c.kernel, c.driver, object, method, attrs, c.scratch)
	c.commands.Count++
	c.commands.Took += c.clock.Since(began)
	if IsGone(err) {
		select {
		case c.refused <- struct{}{}:
		default:
		}
	}
	if err != nil {
		return kernelFailure(o, noun, err, memory{needed: needs, pinned: c.pinned, env: c.env})
	}
	return nil
}
