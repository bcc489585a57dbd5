package uverbs

import "encoding/binary"

// CompChannel is a completion channel: a descriptor on which the kernel announces completion queues
// that were armed and have something to poll. It may serve several queues; one channel per worker
// wakes exactly one goroutine.
type CompChannel struct {
	c      *Context
	fd     int // valid while in c.channels
	events *events
}

// CreateCompChannel makes a completion channel. Its descriptor is closed by Close or by
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
	e, err := newEvents(int(r.FD), SizeOf(CompEventDesc{}), "completion channel")
	if err != nil {
		return nil, err
	}
	ch := &CompChannel{c: c, fd: int(r.FD), events: e}
	c.channels[ch] = struct{}{}
	return ch, nil
}

// Wait parks the goroutine until a queue of the channel has had a completion event, then reads all
// that are there. It returns how many it read, or 0 after Wake. An armed queue gives one event and
// has to be armed again, with its event counter advanced by one per event.
//
// The error wraps ErrClosed after Close, EIO when the device is gone. Wait does not allocate. Wait,
// Next and Drain exclude each other; Wake and Close may be called at any time.
func (ch *CompChannel) Wait() (int, error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	return ch.events.wait(ch.events.all)
}

// Next is Wait for channels that several queues share: it reads one event and returns the user
// handle of its queue, or ok false after Wake. Events of a queue destroyed since may still come.
func (ch *CompChannel) Next() (userHandle uint64, ok bool, err error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	n, err := ch.events.wait(ch.events.one)
	return binary.NativeEndian.Uint64(ch.events.buf[:]), n > 0, err
}

// Drain reads the events that are there and returns how many there were. It does not park or
// allocate.
func (ch *CompChannel) Drain() (int, error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	return ch.events.drain()
}

// Wake makes the Wait or Next that is running, or else the next one, return at once. Several Wakes
// may be answered by one return; whatever was done before the last of them is visible to the waiter
// after it.
func (ch *CompChannel) Wake() { ch.events.wake() }

// Close closes the descriptor. Queues that use the channel stay usable but cannot announce anything
// any more. Closing again returns nil.
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
