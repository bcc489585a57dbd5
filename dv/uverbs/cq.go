package uverbs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// CQAttr describes a completion queue.
type CQAttr struct {
	// Entries gives the size of the ring: a power of two, at most DeviceCaps.MaxCQE+1.
	Entries int

	// CQESize gives the size of an entry in bytes, 64 (default) or 128.
	CQESize int

	// Buf gives the ring: Entries*CQESize bytes, page aligned. Before creation the last byte of
	// every entry must hold the invalid opcode and the hardware's owner bit (0xf1 or 0xff).
	Buf *mmio.Region

	// DBR gives the doorbell record: 8 bytes, 8-aligned, zero.
	DBR *mmio.Region

	// Vector gives the interrupt vector, below DeviceCaps.CompVectors.
	Vector uint32

	// Channel, if not nil, gets the completion events of the queue when it is armed.
	Channel *CompChannel

	// UserHandle comes back in events of the queue.
	UserHandle uint64

	// Compression gives the format of compressed completions, Mlx5CQEFormatHash and so on; 0 for
	// none.
	Compression uint8

	// Pad128 makes the device write 128 bytes for each completion; needs DeviceCaps.CQE128Pad.
	Pad128 bool

	// Timestamps forces timestamps of the free-running clock, RealTime wall time; neither is the
	// device's default.
	Timestamps, RealTime bool

	// IgnoreOverrun lets the device overwrite completions that were not consumed.
	IgnoreOverrun bool
}

// CQ is a completion queue. The device writes completions into its ring; software publishes its
// consumer counter in word 0 of the doorbell record.
type CQ struct {
	object
	CQN       uint32 // number of the queue in the device
	Entries   int
	ArmPage   *Page // to arm, at ArmOffset: arm word in the upper half, CQN in the lower
	ArmOffset int
}

// CreateCQ creates a completion queue. The caller owns the memory of a, which must stay mapped
// until Close returned nil.
func (c *Context) CreateCQ(a CQAttr) (*CQ, error) {
	if a.CQESize == 0 {
		a.CQESize = 64
	}
	noun := fmt.Sprintf("completion queue of %d entries", a.Entries)
	if err := a.checkAttr(noun); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	channel := int32(-1)
	if a.Channel != nil {
		fd, open := a.Channel.descriptor()
		if !open {
			return nil, refuseArgs(opCreateCQ, noun, "its completion channel is closed")
		}
		channel = fd
	}
	var r ExCreateCQResp
	var drv Mlx5CreateCQResp
	w := write{op: opCreateCQ, noun: noun, in: a.coreReq(channel), out: &r,
		uhwIn: a.driverReq(), uhwOut: &drv,
		needs: pageBytes(a.Entries * a.CQESize)}
	if err := c.writeLocked(w); err != nil {
		return nil, err
	}
	cq := &CQ{CQN: drv.CQN, Entries: a.Entries, ArmPage: c.armPage(), ArmOffset: UARCQDoorbell}
	cq.completeNew(c, w, r.Base.CQHandle)
	return cq, nil
}

// armPage returns the page with UAR 0, to which completion queues of a context with static pages
// are bound.
func (c *Context) armPage() *Page {
	if len(c.uars) == 0 {
		return nil
	}
	return c.uars[0]
}

func (a CQAttr) coreReq(channel int32) ExCreateCQReq {
	r := ExCreateCQReq{UserHandle: a.UserHandle, CQE: uint32(a.Entries - 1),
		CompVector: a.Vector, CompChannel: channel}
	if a.Timestamps {
		r.Flags |= CQFlagTimestampCompletion
	}
	if a.IgnoreOverrun {
		r.Flags |= CQFlagIgnoreOverrun
	}
	return r
}

func (a CQAttr) driverReq() Mlx5CreateCQReq {
	r := Mlx5CreateCQReq{BufAddr: a.Buf.Addr(), DBAddr: a.DBR.Addr(), CQESize: uint32(a.CQESize),
		CQECompResFormat: a.Compression}
	if a.Compression != 0 {
		r.CQECompEn = 1
	}
	if a.Pad128 {
		r.Flags |= Mlx5CreateCQ128BPad
	}
	if a.RealTime {
		r.Flags |= Mlx5CreateCQRealTimeTS
	}
	return r
}

func (a CQAttr) checkAttr(noun string) error {
	if a.CQESize != 64 && a.CQESize != 128 {
		return refuseArgs(opCreateCQ, noun, "entries have 64 or 128 bytes, not %d", a.CQESize)
	}
	return checkRing(opCreateCQ, noun, a.Entries, a.CQESize, a.Buf, a.DBR)
}

// checkRing refuses rings that the kernel would refuse, or accept by mistake: the kernel takes the
// logarithm of the number of entries without a check for a power of two, and linux 5.4 drops the
// offset of a ring in its page.
func checkRing(o *op, noun string, entries, entrySize int, buf, dbr *mmio.Region) error {
	switch {
	case entries <= 0 || bits.OnesCount(uint(entries)) != 1:
		return refuseArgs(o, noun, "the number of entries, %d, must be a power of two", entries)
	case buf == nil || buf.Len() < entries*entrySize:
		return refuseArgs(o, noun, "the ring needs %d bytes", entries*entrySize)
	case buf.Addr()%uint64(os.Getpagesize()) != 0:
		return refuseArgs(o, noun, "the ring, at %#x, must be page aligned", buf.Addr())
	case dbr == nil || dbr.Len() < DoorbellRecordLen || dbr.Addr()%DoorbellRecordLen != 0:
		return refuseArgs(o, noun, "the doorbell record needs 8 bytes aligned to 8")
	}
	return nil
}

// Moderate makes the device delay completion events until count completions are written or period
// microseconds have passed, at most 65535 and 4095; 0, 0 turns it off. Only events are affected,
// not completions.
func (cq *CQ) Moderate(count, period uint16) error {
	return cq.c.runWrite(write{op: opModifyCQ, noun: cq.noun, uses: []*object{&cq.object},
		in: ExModifyCQReq{CQHandle: cq.handle, AttrMask: CQAttrModerate,
			CQCount: count, CQPeriod: period}})
}

// Close destroys the queue; EBUSY while a queue pair or work queue completes into it.
func (cq *CQ) Close() error {
	return cq.destroyOnce(write{op: opDestroyCQ,
		in: DestroyCQReq{CQHandle: cq.handle}, out: &DestroyCQResp{}})
}

// CompChannel wraps a completion channel, a descriptor on which the kernel sends an event when an
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
	ch.events.told = true
	return ch.events.waitRecords(ch.events.all)
}

// WaitQuietly does what Wait does, for callers that made no other goroutine ready to run since the
// event before. Of such waits the Go scheduler is told of one in 5 ms, which saves system calls of
// its monitor where events come in a row; goroutines that occupy all processors are interrupted
// later, by as much.
func (ch *CompChannel) WaitQuietly() (int, error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	ch.events.tellSometimes()
	return ch.events.waitRecords(ch.events.all)
}

// Next is Wait for channels that several queues share: it reads one event and returns the user
// handle of its queue, or ok false after Wake. Events of a queue that was destroyed meanwhile may
// still come.
func (ch *CompChannel) Next() (userHandle uint64, ok bool, err error) {
	ch.events.mu.Lock()
	defer ch.events.mu.Unlock()
	ch.events.told = true
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
