package dv

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// The kernel's part of each queue. What a queue's owner calls through its queueControl runs on the
// owner's goroutine; nobody else touches the parts of a queue that is up.

// Kinds of object in the user handles that come back in asynchronous events.
const (
	handleRxCQ = iota + 1
	handleRxWQ
	handleTxCQ
	handleTxQP
)

// generationMask gives the part of a generation that a handle has room for.
const generationMask = 1<<24 - 1

// objectHandle names object kind of queue index, in its generation'th life.
func objectHandle(kind, index int, generation uint32) uint64 {
	return uint64(kind)<<56 | uint64(generation&generationMask)<<32 | uint64(uint32(index))
}

func parseHandle(h uint64) (kind, index int, generation uint32) {
	return int(h >> 56), int(uint32(h)), uint32(h>>32) & generationMask
}

// rxKernelObjects is the kernel's part of a receive queue.
type rxKernelObjects struct {
	d       *Device
	q       *RxQueue
	channel *uverbs.CompChannel
	cq      *uverbs.CQ
	wq      *uverbs.WQ
	halted  bool // by haltFailed, and not started since
	wake    wakeTimers

	ring, rec, cqMem *mmio.Region
}

// createAndStart creates it all and starts reception into the ring. Time stamps are those of the
// free-running clock, or real time if the device has nothing else, which only its refusal tells.
func (p *rxKernelObjects) createAndStart() error {
	caps := &p.d.caps
	err := p.createRings()
	if caps.RealTimeStamps || !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	caps.RealTimeStamps = true
	if p.createRings() == nil {
		return nil
	}
	caps.RealTimeStamps = false // the refusal was about something else
	return err
}

func (p *rxKernelObjects) createRings() (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, p.destroyAll())
		}
	}()
	p.channel, p.cq, p.wq = nil, nil, nil
	d, q := p.d, p.q
	if p.channel, err = d.context.CreateCompChannel(); err != nil {
		return err
	}
	if p.cq, err = d.context.CreateCQ(uverbs.CQAttr{
		Entries: d.plan.rxCompletions(), Buf: p.cqMem, DBR: q.cq.rec, Channel: p.channel,
		Vector:      uint32(q.index) % max(1, d.context.Caps().CompVectors),
		UserHandle:  objectHandle(handleRxCQ, q.index, 0),
		Compression: d.compression(),
		Timestamps:  !d.caps.RealTimeStamps, RealTime: d.caps.RealTimeStamps,
	}); err != nil {
		return err
	}
	if n := d.config.Tuning.EventFrames; n > 0 {
		if err = p.cq.Moderate(n, d.config.Tuning.EventMicroseconds); err != nil {
			return err
		}
	}
	if p.wq, err = d.pd.CreateWQ(uverbs.WQAttr{
		CQ: p.cq, Entries: d.plan.rxRing(),
		LogStride: uint32(bits.TrailingZeros(uint(d.plan.rxWQE()))),
		Striding:  d.plan.strideGeometry(),
		Buf:       p.ring, DBR: p.rec, UserIndex: uint32(rxUserIndex + q.index),
		UserHandle: objectHandle(handleRxWQ, q.index, 0), VLANStrip: d.stripsVLAN(),
		DelayDrop: d.config.Rings.DelayDrop,
	}); err != nil {
		return err
	}
	q.waiter = waiter{channel: p.channel, page: p.cq.ArmPage,
		register: p.cq.ArmOffset, cqn: p.cq.CQN}
	if err = p.startReception(); err != nil {
		return err
	}
	// not before: a NIC may ignore what the doorbell record says when the queue becomes ready
	q.Refill()
	return nil
}

// rxUserIndex keeps the user indices of receive queues clear of send queues'.
const rxUserIndex = 1 << 12

func (p *rxKernelObjects) startReception() error {
	p.halted = false
	return p.wq.Ready()
}

// stopReception stops reception. The NIC's state is RDY or ERR, depending on what went wrong, and
// the firmware insists on being told which; a wrong one is a line in the kernel's log. No command
// asks for it (linux include/uapi/rdma/ib_user_verbs.h), so it is what completions and events said.
// The other one is tried, too: the ring may have failed since the last of them.
func (p *rxKernelObjects) stopReception() error {
	if p.halted {
		return nil
	}
	state, other := uverbs.WQReady, uverbs.WQErr
	if p.q.inError {
		state, other = other, state
	}
	err := p.wq.Modify(state, uverbs.WQReset)
	if errors.Is(err, unix.EINVAL) {
		return p.wq.Modify(other, uverbs.WQReset)
	}
	return err
}

// haltFailed stops reception if the ring is in its error state, and reports whether it was.
func (p *rxKernelObjects) haltFailed() (bool, error) {
	err := p.wq.Modify(uverbs.WQErr, uverbs.WQReset)
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	p.halted = err == nil
	return true, err
}

// destroyAll destroys the queue's objects once its owner has ended.
func (p *rxKernelObjects) destroyAll() error {
	var errs []error
	p.wake.stopAll()
	if p.wq != nil {
		errs = append(errs, p.wq.Close())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.channel != nil {
		errs = append(errs, p.channel.Close())
	}
	return errors.Join(errs...)
}

// txKernelObjects is the kernel's part of a send queue.
type txKernelObjects struct {
	d  *Device
	q  *TxQueue
	cq *uverbs.CQ
	qp *uverbs.QP

	generation atomic.Uint32 // how often it was made
	rate       TxRate        // in force; guarded by q's lock

	ring, rec, cqMem, cqRec *mmio.Region
}

// createAndStart makes completion queue and queue pair, and takes it to "ready to send".
func (p *txKernelObjects) createAndStart() (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stopAndDestroy())
		}
	}()
	d, q := p.d, p.q
	generation := p.generation.Add(1)
	q.cq = newCompRing(p.cqMem, p.cqRec, d.plan.txBlocks)
	if p.cq, err = d.context.CreateCQ(uverbs.CQAttr{
		Entries: d.plan.txBlocks, Buf: p.cqMem, DBR: p.cqRec,
		UserHandle: objectHandle(handleTxCQ, q.index, generation),
	}); err != nil {
		return err
	}
	if p.qp, err = d.pd.CreateRawQP(uverbs.QPAttr{
		CQ: p.cq, Entries: d.plan.txBlocks, SQBuf: p.ring, DBR: p.rec,
		UserIndex:  uint32(q.index + 1),
		UserHandle: objectHandle(handleTxQP, q.index, generation),
	}); err != nil {
		return err
	}
	q.sqn, q.page, q.register = p.qp.SQN, p.qp.Reg, p.qp.RegOffset
	q.blueFlame = blueFlame{size: uint32(p.qp.BlueFlameSize)}
	if err = p.qp.ToReady(d.port); err == nil {
		p.restoreRate()
	}
	return err
}

// restoreRate limits a queue pair made anew as the one before. If others took its entry of the
// device's table meanwhile, the queue sends without limit.
func (p *txKernelObjects) restoreRate() {
	if p.rate.BitsPerSecond == 0 {
		return
	}
	if err := p.qp.Pace(p.rate.pacing()); err != nil {
		p.d.log.Warn("send queue goes on without its rate", "queue", p.q.index,
			"bits_per_second", p.rate.BitsPerSecond, "error", err)
		p.setRate(TxRate{})
	}
}

// setRate notes the rate in force.
func (p *txKernelObjects) setRate(r TxRate) {
	p.rate = r
	p.q.slowest = p.q.timeAtRate(r)
}

// TxRate limits what a send queue sends.
type TxRate struct {
	BitsPerSecond uint64 // of frames; rounded down to 1 kbit/s. 0: no limit
	Burst         int    // bytes sent back to back; 0: the device's choice
	TypicalPacket int    // bytes of most frames, for the device's precision; 0: unknown
}

// pacing returns r in the kernel's units.
func (r TxRate) pacing() uverbs.Pacing {
	return uverbs.Pacing{Kbps: uint32(r.BitsPerSecond / 1000), MaxBurst: uint32(r.Burst),
		TypicalPacket: uint16(r.TypicalPacket)}
}

// LimitTxRate makes the NIC keep send queue i to a rate. What is posted stays in order, and waits
// in the ring: Free tells how much has left. A queue that is reset keeps its rate, or a line in the
// log says that it could not, and TxRate returns 0. Errors wrap errors.ErrUnsupported if the device
// paces nothing, and unix.EINVAL outside of Caps.Pacing, unix.ENOSPC if the device's table has no
// room for one more rate; the rate before then stays. Call it without the queue's lock.
func (d *Device) LimitTxRate(i int, r TxRate) error {
	limits := d.caps.Pacing
	kbps := r.BitsPerSecond / 1000
	switch {
	case limits.MaxKbps == 0 && r != TxRate{}:
		return fmt.Errorf("device %s cannot pace send queues: %w", d.Name(), errors.ErrUnsupported)
	case kbps == 0 && r != TxRate{}, kbps != 0 && kbps < uint64(limits.MinKbps),
		kbps > uint64(limits.MaxKbps):
		return fmt.Errorf("%d bit/s is outside of %d to %d kbit/s: %w", r.BitsPerSecond,
			limits.MinKbps, limits.MaxKbps, unix.EINVAL)
	case r.Burst < 0 || r.Burst > math.MaxUint32, r.TypicalPacket < 0,
		r.TypicalPacket > math.MaxUint16, !limits.Burst && (r.Burst|r.TypicalPacket) != 0:
		return fmt.Errorf("burst of %d, packets of %d bytes: give 0, or up to 32 and 16 bits if "+
			"Caps.Pacing.Burst is set: %w", r.Burst, r.TypicalPacket, unix.EINVAL)
	}
	p := d.txObjects[i]
	p.q.Lock()
	defer p.q.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	if r == p.rate {
		return nil
	}
	if p.qp != nil { // a queue being reset takes it when it starts
		if err := p.qp.Pace(r.pacing()); err != nil {
			return err
		}
	}
	p.setRate(r)
	return nil
}

// TxRate returns the rate of send queue i.
func (d *Device) TxRate(i int) TxRate {
	p := d.txObjects[i]
	p.q.Lock()
	defer p.q.Unlock()
	return p.rate
}

// stopAndDestroy destroys them. It asks for the state first: the kernel resets the send queue from
// the state that it last saw, and an error it has not seen makes that a failure in its log.
func (p *txKernelObjects) stopAndDestroy() error {
	var errs []error
	if p.qp != nil {
		_, err := p.qp.Query()
		errs = append(errs, err, p.qp.Close())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	p.qp, p.cq = nil, nil
	return errors.Join(errs...)
}
