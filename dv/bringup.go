package dv

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/internal/netdev"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// makePlan makes every choice that needs no device: sizes, MAC, key.
func (d *Device) makePlan(t *target) (err error) {
	if d.plan, err = newPlan(&d.config, t.facts.MTU, os.Getpagesize()); err != nil {
		return err
	}
	if limit, limited := t.lockable(); limited {
		d.fitInto(limit)
	}
	if d.config.MAC, err = chooseMAC(&d.config, &t.facts); err != nil {
		return err
	}
	if d.facts.Netvsc != "" && !d.config.HostMode {
		d.log.Warn("broadcasts do not come to this virtual function but to the Hyper-V device "+
			"before it: ARP requests and DHCP's broadcasts are not heard",
			"device", d.Name(), "netvsc", d.facts.Netvsc)
	}
	if d.config.RSSKey == (RSSKey{}) {
		d.config.RSSKey = SymmetricRSSKey()
	}
	if t.facts.Down {
		return isDown(t.facts.Netdev)
	}
	return t.allowed(&d.plan)
}

// fitInto makes rings and buffers whose sizes were left open smaller, if no more than limit bytes
// may be locked in memory.
func (d *Device) fitInto(limit int) {
	before := d.plan
	if d.plan.shrinkToLimit(&d.config, limit); d.plan == before || d.plan.pinnedBytes() > limit {
		return
	}
	d.log.Warn("rings and buffers are smaller than usual, and bursts may be lost: no more memory "+
		"may be locked (ulimit -l, systemd LimitMEMLOCK=)", "device", d.Name(),
		"limit_bytes", limit, "pinned_bytes", d.plan.pinnedBytes(),
		"pinned_bytes_usual", before.pinnedBytes(),
		"rx_ring", d.plan.rxEntries, "rx_ring_usual", before.rxEntries,
		"tx_ring", d.plan.txBlocks, "tx_ring_usual", before.txBlocks,
		"tx_buffer", d.plan.stage, "tx_buffer_usual", before.stage,
		"spare_buffers", d.plan.spare, "spare_buffers_usual", before.spare,
		"send_memory", d.plan.sendMemory, "send_memory_usual", before.sendMemory)
}

// bringUp makes everything, as steps of the cleanup. Send queues come before receive queues and
// rules: the other way round, some firmware returns our own broadcasts to us (VPP
// plugins/rdma/device.c). Rules come last, so that no frame meets a queue that is not ready.
func (d *Device) bringUp(ctx context.Context, t *target) error {
	for _, stage := range []struct {
		name string
		do   func() error
	}{
		{"mapping memory", func() error {
			return d.cleanup.runStep("map memory",
				d.mapMemory, d.memory.unmapAll)
		}},
		{"opening the RDMA context", func() error { return d.openContext(t) }},
		{"asking for its capabilities", func() error { return d.checkDevice(t) }},
		{"registering memory", d.registerMemory},
		{"making send queues", d.makeTx},
		{"making receive queues", d.makeRx},
		{"steering frames to them", d.createSteering},
		{"registering addresses", func() error { d.registerMAC(t); return nil }},
		{"following the netdev", func() error { d.followNetdev(t); return nil }},
	} {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("before %s: %w", stage.name, err)
		}
		if err := d.timeStage(stage.name, stage.do); err != nil {
			return err
		}
	}
	d.watch.Go(d.watchEvents)
	d.watch.Go(d.watchCommands)
	return nil
}

// followNetdev follows the MTU of the netdev from here on.
func (d *Device) followNetdev(t *target) {
	if t.watch == nil {
		return
	}
	var w *netdev.Watcher
	if err := d.cleanup.runStep("netdev", func() (err error) {
		w, err = t.watch(func(i netdev.Interface) { d.SetNetdevMTU(i.MTU) })
		return err
	}, func() error { return w.Close() }); err != nil {
		d.log.Warn("changes of the netdev's MTU are not followed", "device", d.Name(), "error", err)
	}
}

// mapMemory takes the memory. It is returned last of all, after the kernel has
// let go of the device: only then does nobody know of it any more.
func (d *Device) mapMemory() error { return d.memory.mapAll(&d.plan) }

func (d *Device) openContext(t *target) error {
	return d.cleanup.runStep("uverbs", func() error {
		k, err := t.open()
		if err != nil {
			return err
		}
		if d.config.Interpose != nil {
			k = d.config.Interpose(k)
		}
		d.context, err = uverbs.Open(k, uverbs.Options{TxQPs: d.plan.tx, DriverID: t.driver,
			WriteCombining: d.config.Tuning.BlueFlame, Clock: d.config.Clock})
		return err
	}, func() error {
		err := d.context.Close()
		d.watch.Wait()
		return err
	})
}

// checkDevice finds out whether device and port can serve us as asked.
func (d *Device) checkDevice(t *target) error {
	port, err := d.context.QueryPort(d.port)
	if err != nil {
		return err
	}
	if !port.Ethernet() {
		return inInfiniBand(d.Name(), d.port, max(t.linkType, int(d.port)))
	}
	caps := d.context.Caps()
	if err := caps.Check(); err != nil {
		return withKind(ErrNotMlx5, err)
	}
	d.linkUp.Store(port.Active())
	d.outOfBuffer.startCounting(d.config.Clock, func() (uint64, error) {
		return d.context.PortCounter(d.port, "out_of_buffer")
	})
	d.caps = capsOf(&caps, &d.plan)
	d.spread.Store(&spread{newToeplitz(d.config.RSSKey),
		evenTable(d.plan.active, logTable(caps, d.plan.rx))})
	return d.checkLimits(&caps)
}

// checkLimits compares what is asked with what this device has.
func (d *Device) checkLimits(caps *uverbs.DeviceCaps) error {
	for _, l := range []struct {
		name       string
		want, have int
	}{
		{"TxQueueSize", d.plan.txBlocks, int(caps.MaxSendBlocks)},
		{"RxQueueSize", d.plan.rxRing(), int(caps.MaxRecvWR)},
		{"RxQueues", d.plan.rx, d.caps.MaxRxQueues},
	} {
		if l.want > l.have {
			return errorOfKind(ErrConfig, "%s is %d, this device has at most %d", l.name, l.want,
				l.have)
		}
	}
	if d.config.Tuning.StripVLAN && !caps.VLANStrip {
		return errorOfKind(ErrNotSupported,
			"this device cannot take VLAN tags out of frames: do not set StripVLAN")
	}
	if d.config.Tuning.EventFrames > 0 && caps.ModerationMaxCount == 0 {
		return errorOfKind(ErrNotSupported,
			"this device cannot hold events back: do not set EventFrames")
	}
	if d.plan.rxWQE() > caps.MaxRecvDesc {
		return errorOfKind(ErrNotSupported,
			"this device has receive descriptors of %d bytes, %d are needed for %d buffers per "+
				"frame: set NoMultiSegment",
			caps.MaxRecvDesc, d.plan.rxWQE(), d.plan.segs)
	}
	if d.plan.striding && !canStride(caps) {
		return errorOfKind(ErrNotSupported,
			"this device has no receive rings of %d strides of %d bytes: do not set Striding",
			strides, strideSize)
	}
	return nil
}

// registerMemory registers the arena and makes the pool of its first part.
func (d *Device) registerMemory() error {
	if err := d.cleanup.runStep("protection domain", func() (err error) {
		d.pd, err = d.context.AllocPD()
		return err
	}, func() error { return d.pd.Close() }); err != nil {
		return err
	}
	arena := d.memory.arena.Sub(0, d.plan.arenaBytes())
	if err := d.cleanup.runStep("memory region", func() (err error) {
		d.mr, err = d.pd.RegMR(arena, uverbs.AccessLocalWrite|uverbs.AccessRelaxedOrdering)
		return asMemlock(err)
	}, func() error { return d.mr.Close() }); err != nil {
		return err
	}
	d.registerSendMemory()
	d.pool = newPool(d.memory.arena, d.mr.LKey, d.plan.frame, d.plan.frameCount())
	switch {
	case d.plan.striding:
		d.pool.makeShared()
	case d.plan.segs > 1:
		d.pool.makeChainable()
	}
	return nil
}

// asMemlock gives what a refusal to pin memory means its kind.
func asMemlock(err error) error {
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
		return withKind(ErrMemlock, err)
	}
	return err
}

// registerSendMemory registers memory of our caller's for the NIC to read. What fails does so in a
// line of the log: packets are copied then.
func (d *Device) registerSendMemory() {
	get := d.config.sendMemory
	if get == nil {
		return
	}
	err := func() error {
		if d.plan.sendMemory == 0 {
			return withKind(ErrMemlock, errors.New("no more memory may be locked (ulimit -l, "+
				"systemd LimitMEMLOCK=)"))
		}
		b, err := get(d.plan.sendMemory)
		if err != nil {
			return err
		}
		if len(b) == 0 || len(b) > d.plan.sendMemory {
			return fmt.Errorf("WithSendMemory: got %d bytes, 1 to %d will do", len(b),
				d.plan.sendMemory)
		}
		mem := mmio.Borrow(b)
		var mr *uverbs.MR
		if err := d.cleanup.runStep("memory region to send from", func() (err error) {
			mr, err = d.pd.RegMR(mem, 0)
			return asMemlock(err)
		}, func() error { return mr.Close() }); err != nil {
			return err
		}
		d.sendMemory = sendMemory{mem: mem, lkey: mr.LKey}
		return nil
	}()
	d.plan.sendMemory = 0
	if d.sendMemory.err = err; err != nil {
		d.log.Warn("packets are copied to be sent", "device", d.Name(), "error", err)
		return
	}
	d.plan.sendMemory = d.sendMemory.mem.Len()
}

func (d *Device) makeTx() error {
	for i := range d.plan.tx {
		p := &txKernelObjects{d: d, ring: d.memory.nextRing(d.plan.sqBytes()),
			rec:   d.memory.nextRecord(),
			cqMem: d.memory.nextRing(d.plan.txCQBytes()), cqRec: d.memory.nextRecord()}
		p.q = newTxQueue(i, d.plan.txBlocks, p.ring, p.rec, d.pool, d.stageOf(i), d.txLimits())
		p.q.queueControl, p.q.log = d.queueControl(p.stopAndDestroy, p.createAndStart), d.log
		p.q.recovery, p.q.lent = newRecovery(d.config.Clock), d.sendMemory
		if err := d.cleanup.runStep(fmt.Sprintf("send queue %d", i), p.createAndStart,
			p.stopAndDestroy); err != nil {
			return err
		}
		d.tx, d.txObjects = append(d.tx, p.q), append(d.txObjects, p)
	}
	return nil
}

// stageOf returns the staging memory of send queue i.
func (d *Device) stageOf(i int) staging {
	at := d.plan.arenaBytes() - (d.plan.tx-i)*d.plan.stage
	mem := d.memory.arena
	return staging{buf: mem.Slice(at, d.plan.stage), addr: mem.Addr() + uint64(at), lkey: d.mr.LKey,
		size: uint32(d.plan.stage)}
}

func (d *Device) makeRx() error {
	for i := range d.plan.rx {
		p := &rxKernelObjects{d: d, ring: d.memory.nextRing(d.plan.rqBytes()),
			rec:   d.memory.nextRecord(),
			cqMem: d.memory.nextRing(d.plan.rxCQBytes())}
		cq := newCompRing(p.cqMem, d.memory.nextRecord(), d.plan.rxCompletions())
		p.q = d.newRx(i, p.ring, p.rec, cq)
		p.q.cq.compressed = d.compression() != 0
		p.q.queueControl, p.q.log = d.queueControl(p.stopReception, p.startReception), d.log
		p.q.recovery = newRecovery(d.config.Clock)
		p.q.asleep = clock.NewAsleep(d.config.Clock)
		p.q.haltFailed = p.haltFailed
		p.wake = wakeTimers{clock: d.config.Clock, wake: p.q.Wake}
		p.q.wakeAfter = p.wake.wakeAfter
		if err := d.cleanup.runStep(fmt.Sprintf("receive queue %d", i), p.createAndStart,
			p.destroyAll); err != nil {
			return err
		}
		d.rx, d.rxObjects = append(d.rx, p.q), append(d.rxObjects, p)
	}
	return nil
}

// newRx is receive queue i, of the kind that was planned.
func (d *Device) newRx(i int, ring, rec *mmio.Region, cq compRing) *RxQueue {
	switch {
	case d.plan.striding:
		return newStridingRxQueue(i, d.plan.rxRing(), ring, rec, cq, d.pool)
	case d.plan.segs > 1:
		return newMultiSGERxQueue(i, d.plan.rxRing(), d.plan.segs, ring, rec, cq, d.pool)
	}
	return newRxQueue(i, d.plan.rxRing(), ring, rec, cq, d.pool)
}

func (d *Device) queueControl(halt, start func() error) queueControl {
	return queueControl{halt: halt, start: start, fail: d.failWith, linkUp: d.LinkUp, ended: d.Err,
		clock: d.Clock, dumped: d.config.Dumped}
}
