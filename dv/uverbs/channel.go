package uverbs

import "encoding/binary"

// CompChannel is a completion channel: a descriptor on which the kernel sends an event when an
// armed completion queue gets a completion. It may serve several queues; one channel per worker
// wakes exactly one goroutine.
type CompChannel struct {
	c      *Context
	fd     int // valid while in c.channels
	events *events
}

// CreateCompChannel creates a completion channel. Its descriptor is closed by Close or by
// Context.Close.
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var r CreateCompChannelResp
	err := c.writeLocked(write{op: opCreateChannel, noun: "completion channel",
		in: CreateCompChannelReq{}, out: &r})
	if err != nil {
		return nil, err
	}
	e, err := newEvents(c.kernel, int(r.FD), SizeOf(CompEventDesc{}), "completion channel")
	if err != nil {
		return nil, err
	}
	ch := &CompChannel{c: c, fd: int(r.FD), events: e}
	c.channels[ch] = struct{}{}
	return ch, nil
}

// Wait blocks until a queue of the channel has a completion event, then reads all pending events.
// It returns how many it read, or 0 after Wake. An armed queue gives one event and has to be armed
// again, with its event counter advanced by one per event.
//
// The error wraps ErrClosed after Close, EIO if the device has failed or was removed. Wait does not
// allocate. Wait, Next and Drain exclude each other; Wake and Close may be called at any time.
func (ch *CompChannel) Wait() (int, error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	return ch.events.waitRecords(ch.events.all)
}

// Next is Wait for channels that several queues share: it reads one event and returns the user
// handle of its queue, or ok false after Wake. Events of a queue that was destroyed meanwhile may
// still come.
func (ch *CompChannel) Next() (userHandle uint64, ok bool, err error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	n, err := ch.events.waitRecords(ch.events.one)
	return binary.NativeEndian.Uint64(ch.events.buf[:]), n > 0, err
}

// Drain reads the pending events and returns their number. It does not block or allocate.
func (ch *CompChannel) Drain() (int, error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	return ch.events.drainRecords()
}

// Wake makes the running Wait or Next, or else the next one, return at once. One return may serve
// several Wakes; writes before the last of them are visible to the waiter after it.
func (ch *CompChannel) Wake() { ch.events.wakeWaiter() }

// Close closes the descriptor. Queues that use the channel stay usable but send no more events.
// Closing again returns nil.
func (ch *CompChannel) Close() error {
	ch.c.mu.Lock()
	delete(ch.c.channels, ch)
	ch.c.mu.Unlock()
	return ch.events.close()
}

// descriptor returns the number for CREATE_CQ, or false once closed; c.mu is held.
func (ch *CompChannel) descriptor() (int32, bool) {
	_, open := ch.c.channels[ch]
	return int32(ch.fd), open
}
