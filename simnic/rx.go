package simnic

import (
	"context"
	"encoding/binary"
	"runtime"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// deliverPacket writes the burst's packet into the queue and completes it. The packet
// ends in exactly one counter. The burst holds the queue's lock.
func (rq *RQ) deliverPacket(b *rxBurst) {
	if !rq.takesPackets(b) {
		return
	}
	var ended counter
	if b.packet.lro != nil {
		ended = rq.deliverMerging(b)
	} else {
		rq.closeMerge()
		ended = rq.deliverAlone(b, rq.applyPacketOps(b))
	}
	rq.countEnd(b, ended, b.packet.length)
}

// countEnd counts the result for the burst's packet, of n bytes.
func (rq *RQ) countEnd(b *rxBurst, ended counter, n int) {
	if ended != delivered {
		rq.countLost(ended)
		return
	}
	b.received.countPackets(&rq.nic.counters.rx[rq.queueOwner()], b.packet.kind, 1, n)
}

// countLost counts a packet that the queue did not take.
func (rq *RQ) countLost(why counter) {
	rq.nic.counters.addTo(why, 1)
	if why == ctrOutOfBuffer && rq.attr.Count != nil {
		rq.attr.Count.outOfBuffer.Add(1)
	}
}

// deliverAlone gives the packet, arranged and stripped or not, a completion of its own.
func (rq *RQ) deliverAlone(b *rxBurst, stripped bool) counter {
	if rq.attr.Striding != nil {
		return rq.deliverStriding(b, stripped)
	}
	return rq.deliverCyclic(b, stripped)
}

// delivered stands for no drop counter: the packet is in the queue's memory.
const delivered = numCounters

func (rq *RQ) queueOwner() owner {
	if rq.attr.Netdev {
		return ownerNetdev
	}
	return ownerSlice
}

// takesPackets reports whether the queue takes packets at the moment, and counts the packet if not.
func (rq *RQ) takesPackets(b *rxBurst) bool {
	n := rq.nic
	switch {
	case rq.state == StateError:
		rq.flushBlock()
		rq.flushPosted()
		n.counters.addTo(ctrNotReady, 1)
		return false
	case rq.state != StateReady || n.fatal.Load():
		n.counters.addTo(ctrNotReady, 1)
		return false
	case rq.attr.CQ.Status() != CQOK:
		n.counters.addTo(ctrCQError, 1)
		return false
	}
	h := n.hooks.Load()
	if h == nil || h.Deliver == nil {
		return true
	}
	starve, syndrome, vendor := h.Deliver(rq)
	if starve {
		rq.countLost(ctrOutOfBuffer)
		return false
	}
	if syndrome == 0 {
		return true
	}
	n.counters.addTo(ctrFault, 1)
	rq.closeMerge()
	if rq.postedWQEs() > 0 {
		rq.failWQE(fault{mlx5.Syndrome(syndrome), vendor, 0}, b.packet.length)
	}
	return false
}

// applyPacketOps applies the operations of the queue to every packet.
func (rq *RQ) applyPacketOps(b *rxBurst) (stripped bool) {
	if rq.attr.ScatterFCS {
		b.addFCS()
	}
	if rq.attr.VLANStrip && b.p.Tags > 0 && b.p.TPID == frame.EtherVLAN {
		b.stripCTag()
		return true
	}
	return false
}

// postedRecord returns the number of WQEs that the driver has posted, from the doorbell record.
func (rq *RQ) postedRecord() uint16 { return uint16(rq.attr.Record.LoadBE32(mlx5.RecordRecv)) }

// postedWQEs returns how many WQEs wait in the ring.
func (rq *RQ) postedWQEs() uint16 {
	written := rq.postedRecord()
	if rq.ignores && written == rq.ignored {
		return 0
	}
	rq.ignores = false
	return written - rq.hwCI
}

// available reports whether there is a WQE for a packet, and waits for one if the queue delays
// drops. It records a violation for an impossible counter.
func (rq *RQ) available(b *rxBurst) bool {
	n := rq.postedWQEs()
	if int(n) > 1<<rq.attr.LogSize {
		rq.nic.strict.addViolation("receive queue %#x: %d WQEs posted in a ring of %d",
			rq.number, n, 1<<rq.attr.LogSize)
	}
	return n > 0 || rq.attr.DelayDrop && rq.awaitWQE(b)
}

// How long a packet waits for a WQE, and how often it polls. linux 6.12 mlx5_ib sets 100 ms. In the
// model the sender's goroutine waits, which may be the one that the receiver waits for: hence
// asynchronous senders.
const (
	delayDrop      = 100 * time.Millisecond
	delayDropPoll  = 10 * time.Microsecond
	delayDropYield = 20 // polls before the first sleep: enough for a running driver
)

// awaitWQE delays the packet, and all packets after it on the wire, until the driver posts a WQE.
// It writes the completions that the queue holds back: the driver posts WQEs for those that it
// sees. Only the queue stays locked meanwhile, until a command wants it.
func (rq *RQ) awaitWQE(b *rxBurst) bool {
	b.mem.releaseKey()
	b.addCounts()
	rq.flushBlock()
	if b.waited != nil {
		b.waited.Store(true)
	}
	clock := rq.nic.clock
	for looks, start := 0, clock.Now(); !rq.dropNow; looks++ {
		if looks < delayDropYield {
			runtime.Gosched()
		} else {
			// not only a yield: an event may have to wake the driver
			_ = clock.Sleep(context.Background(), delayDropPoll)
		}
		switch {
		case rq.postedWQEs() > 0:
			return true
		case rq.commands.Load() > 0:
			return false
		case rq.nic.closed.Load() || rq.nic.fatal.Load() || clock.Since(start) > delayDrop:
			rq.dropNow = true
		}
	}
	return false
}

// ringSlot returns the position in the ring of the next WQE.
func (rq *RQ) ringSlot() uint16 {
	if rq.attr.LinkedList {
		return rq.head
	}
	return rq.hwCI & (1<<rq.attr.LogSize - 1)
}

// completionIndex returns how completions name the next WQE.
func (rq *RQ) completionIndex() uint16 {
	if rq.attr.LinkedList || rq.nic.cfg.RingIndex {
		return rq.ringSlot()
	}
	return rq.hwCI
}

// loadWQE copies the next WQE out of the ring.
func (rq *RQ) loadWQE() []byte {
	w := rq.wqe[:1<<rq.attr.LogStride]
	rq.attr.Ring.Gather(uint64(rq.ringSlot())<<rq.attr.LogStride, w)
	return w
}

// scatterList returns the scatter list of a WQE: behind the next segment, if it has one.
func (rq *RQ) scatterList(w []byte) []byte {
	if rq.attr.LinkedList || rq.attr.Striding != nil {
		return w[mlx5.DataSegSize:]
	}
	return w
}

// consumeWQE takes the next WQE out of the ring.
func (rq *RQ) consumeWQE(w []byte) {
	rq.hwCI++
	rq.dropNow = false
	if rq.attr.LinkedList {
		rq.head = be16(w[2:]) & (1<<rq.attr.LogSize - 1)
	}
}

// deliverCyclic gives the packet a WQE of its own.
func (rq *RQ) deliverCyclic(b *rxBurst, stripped bool) counter {
	if !rq.available(b) {
		return ctrOutOfBuffer
	}
	w := rq.loadWQE()
	list := rq.scatterList(w)
	if b.packet.length > listCapacity(list, b.packet.length) {
		if rq.nic.cfg.DropTooLong {
			return ctrTooLong
		}
		rq.completeError(faultRxLength, uint32(b.packet.length))
		rq.consumeWQE(w)
		return ctrLengthError
	}
	if f := rq.scatterPacket(b, list, 0); f.syndrome != 0 {
		rq.failWQE(f, 0)
		return ctrProtection
	}
	var c mlx5.RxCQE
	rq.describePacket(&c, b, stripped)
	c.ByteCount, c.Counter = uint32(b.packet.length), rq.completionIndex()
	rq.consumeWQE(w)
	return rq.writeCompletion(b, &c)
}

// listCapacity returns how many bytes a scatter list holds, counted up to n.
func listCapacity(list []byte, n int) (sum int) {
	for ; len(list) >= mlx5.DataSegSize && sum < n; list = list[mlx5.DataSegSize:] {
		count := binary.BigEndian.Uint32(list) &^ startPadding
		if count == 0 {
			break
		}
		sum += int(count)
	}
	return sum
}

// startPadding in the byte count of a receive segment lets the NIC pad the packet's
// start, which this one never does; in a send queue the same bit marks inline data
// (MLX5_HW_START_PADDING, linux include/linux/mlx5/qp.h; mlx5e sets it always).
const startPadding = 1 << 31

// scatterPacket writes the pieces of the packet into the scatter list from its byte skip on. It
// does not check entries that it does not reach.
func (rq *RQ) scatterPacket(b *rxBurst, list []byte, skip int) fault {
	parts := b.packet.parts[:b.packet.n]
	var part []byte
	for ; len(list) >= mlx5.DataSegSize; list = list[mlx5.DataSegSize:] {
		room := int(binary.BigEndian.Uint32(list) &^ startPadding)
		if skip >= room {
			skip -= room
			continue
		}
		lkey, addr := binary.BigEndian.Uint32(list[4:]),
			binary.BigEndian.Uint64(list[8:])+uint64(skip)
		room, skip = room-skip, 0
		for room > 0 {
			if len(part) == 0 {
				if len(parts) == 0 {
					return rq.padCacheLine(b, lkey, addr, room)
				}
				part, parts = parts[0], parts[1:]
			}
			n := min(room, len(part))
			if f := b.mem.writeMemory(rq, lkey, addr, part[:n], room); f.syndrome != 0 {
				return f
			}
			part, addr, room = part[n:], addr+uint64(n), room-n
		}
	}
	return fault{}
}

// padCacheLine fills the rest of the cache line after the packet if the queue requires it, inside
// the segment only.
func (rq *RQ) padCacheLine(b *rxBurst, lkey uint32, addr uint64, room int) fault {
	n := min(room, int(-addr&63), len(zeros))
	if !rq.attr.EndPad || n == 0 {
		return fault{}
	}
	return b.mem.writeMemory(rq, lkey, addr, zeros[:n], room)
}

// describePacket fills a zero c with the completion of the burst's packet, without length and
// index.
func (rq *RQ) describePacket(c *mlx5.RxCQE, b *rxBurst, stripped bool) {
	pk := &b.packet
	c.Hash, c.HashType, c.FlowTag = pk.hash, pk.hashType, pk.tag
	c.Checksum, c.Status = pk.sum, pk.status
	c.UIdx, c.Timestamp = rq.attr.UserIndex, rq.burstStamp(b)
	c.OpOwn = mlx5.OpOwn(mlx5.CQERecv, 0, 0, 0)
	if stripped {
		c.VLAN = b.p.TCI
	}
}

// burstStamp returns the time stamp of the burst's packets.
func (rq *RQ) burstStamp(b *rxBurst) uint64 { return rq.nic.stampAt(rq.attr.Timestamps, b.passed) }

// writeCompletion writes a completion, or keeps it for a block of compressed ones.
func (rq *RQ) writeCompletion(b *rxBurst, c *mlx5.RxCQE) counter {
	ok := false
	if rq.attr.CQ.attr.Compress {
		ok = rq.holdCompletion(b, c)
	} else {
		var e [mlx5.CQESize]byte
		c.Put(e[:])
		ok = rq.attr.CQ.putCompletion(&e)
	}
	if !ok {
		return ctrCQError
	}
	return delivered
}

// completeError writes an error completion for the next WQE.
func (rq *RQ) completeError(f fault, bytes uint32) {
	c := mlx5.ErrorCQE{UIdx: rq.attr.UserIndex, ByteCount: bytes, HWSyndrome: f.hw,
		Vendor: f.vendor, Syndrome: f.syndrome,
		Counter: rq.completionIndex(), OpOwn: mlx5.OpOwn(mlx5.CQERecvErr, 0, 1, 0)}
	var e [mlx5.CQESize]byte
	c.Put(e[:])
	mlx5.SignCQE(&e)
	rq.nic.countError(f, ctrRespErrors, ctrRespFlushed)
	rq.flushBlock()
	rq.attr.CQ.putCompletion(&e)
}

// failWQE consumes the next WQE with an error. Any error but a length error puts the queue in error
// and flushes the rest.
func (rq *RQ) failWQE(f fault, bytes int) {
	w := rq.loadWQE()
	if f.syndrome == mlx5.SynLocalLength {
		rq.completeError(f, uint32(bytes))
		rq.consumeWQE(w)
		return
	}
	rq.completeError(f, 0)
	rq.consumeWQE(w)
	rq.state = StateError
	rq.flushPosted()
}

// flushPosted completes every posted WQE unexecuted. WQEs posted later are flushed
// when the next packet comes. Called with the lock held.
func (rq *RQ) flushPosted() {
	for n := min(int(rq.postedWQEs()),
		1<<rq.attr.LogSize); n > 0 && rq.attr.CQ.Status() == CQOK; n-- {
		w := rq.loadWQE()
		rq.completeError(faultFlush, 0)
		rq.consumeWQE(w)
	}
}

// cqFailed puts the queue in error because its CQ failed.
func (rq *RQ) cqFailed() {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	if rq.state == StateReset {
		return
	}
	rq.state = StateError
	if rq.attr.Events != nil {
		rq.attr.Events(Event{Type: EventRQFatal, RQ: rq})
	}
}

// finishBatch writes the completions that the queue holds back at the end of a batch. Called with
// the lock held.
func (rq *RQ) finishBatch() {
	rq.closeMerge()
	rq.flushBlock()
}

// deliverSegments delivers the packets that an unsegmented frame stands for. It reports
// false when the frame cannot be segmented.
func (n *NIC) deliverSegments(b *rxBurst, rq *RQ, f *frame.Frame) bool {
	payload := f.Data[f.HdrLen:]
	if int(f.HdrLen) > len(b.template) {
		return false
	}
	s, ok := frame.NewSegmenter(b.template[:copy(b.template[:], f.Data[:f.HdrLen])], int(f.MSS),
		len(payload))
	if !ok {
		return false
	}
	end := b.p.End
	b.p.End = 0 // no packet has a status yet
	b.lockQueue(rq)
	for g := s.Packets(); g.Next(); {
		piece := payload[g.At : g.At+g.Len]
		sum := frame.Sum(piece)
		if rq.deliverSegment(b, &g, int(f.HdrLen), piece, sum) {
			continue
		}
		h := g.Header(b.header[:], sum)
		b.p.End = len(h) + len(piece)
		b.setSegment(h, piece)
		rq.deliverPacket(b)
		b.p.End = 0
	}
	b.p.End = end
	return true
}

// deliverSegment writes the packet of segment g, with a header of hdr bytes, where
// the queue's next WQE points, without assembling it elsewhere first. It reports false, and has
// done nothing, if that needs more than copying: deliver handles every case. The checksum status of
// the packet before holds for one of the same length, as b.p.end says.
func (rq *RQ) deliverSegment(b *rxBurst, g *frame.Segment, hdr int, piece []byte, sum uint16) bool {
	n := hdr + len(piece)
	if !rq.copiesUnchanged(b) || b.packet.padded && n < frame.MinFrame ||
		rq.postedWQEs()-1 >= 1<<rq.attr.LogSize { // 0 wraps; a ready queue's only
		return false
	}
	w := rq.loadWQE()
	dst := rq.firstBuffer(b, rq.scatterList(w), n)
	if dst == nil {
		return false
	}
	h := g.Header(dst, sum)
	copy(dst[len(h):], piece)
	if b.p.End != n {
		b.p.End = n
		b.setVerified(h)
	}
	var e mlx5.RxCQE
	rq.describePacket(&e, b, false)
	e.ByteCount, e.Counter = uint32(n), rq.completionIndex()
	rq.consumeWQE(w)
	rq.countEnd(b, rq.writeCompletion(b, &e), n)
	return true
}

// copiesUnchanged reports whether a packet is copied into the queue unchanged, with its own
// completion.
func (rq *RQ) copiesUnchanged(b *rxBurst) bool {
	a, h := &rq.attr, rq.nic.hooks.Load()
	return rq.state == StateReady && a.Striding == nil &&
		b.packet.lro == nil && rq.merge.segments == 0 &&
		!a.ScatterFCS && !a.EndPad && !(a.VLANStrip && b.p.Tags > 0) &&
		a.CQ.Status() == CQOK && !rq.nic.fatal.Load() && (h == nil || h.Deliver == nil)
}

// firstBuffer returns the n bytes that the first entry of a scatter list points to, nil if they are
// not adjacent memory of the key or need an error.
func (rq *RQ) firstBuffer(b *rxBurst, list []byte, n int) []byte {
	room := int(binary.BigEndian.Uint32(list) &^ startPadding)
	if room < n {
		return nil
	}
	k := b.mem.findKey(rq.nic, binary.BigEndian.Uint32(list[4:]))
	if k == nil {
		return nil
	}
	off, ok, _ := k.keySpan(rq.attr.PD, binary.BigEndian.Uint64(list[8:]), room)
	if !ok || !k.attr.LocalWrite {
		return nil
	}
	if dst := k.attr.Mem.Slice(off, n); len(dst) == n {
		return dst
	}
	return nil
}
