package tcpfix

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// duplicates names data that came twice in acknowledgements (DSACK, RFC 2883).
//
// Behaviour: netstack answers data that it has with an acknowledgement that does not say which
// (transport/tcp/rcv.go, maybeSendOutOfWindowAck). The peer cannot tell that what it has sent again
// was not lost: Linux does not take back what it did to its window (tcp_try_undo_dsack), nor does
// its reordering window grow (RFC 8985 section 6.2 step 4), and a tail loss probe that nobody
// needed counts as a loss (section 7.4.2).
//
// Fix: the pure ACK that answers such a segment gets the duplicate range as its first SACK block,
// in front of those of netstack's, of which the last goes where there is no room: four fit, three
// beside a timestamp. A range above the ACK number is known as a duplicate if SACK blocks that have
// been sent have it, and goes only in front of the block that has it (section 4.2). As with Linux
// (tcp_send_dupack) a keep-alive probe counts by what it carries: nothing without data. Data and
// what the NIC cuts stay as they are.
//
// What netstack will expect next is foretold from the segments delivered to it, as it handles them
// later: where no processor was free both copies come before the answer to the first. It refuses
// some, so that only what the ACK number has passed is reported, and the forecast ends with an ACK
// that says the same again, or has no window.
//
// Upstream: docs/upstream/37-duplicate-sack.md. No longer needed when TestDuplicateSACK of
// tests/conformance/upstream fails.
type duplicates struct {
	clock  tcpip.Clock
	flows  []duplicateFlow // by hash; of two flows in one place the later stays
	shards [duplicateShards]duplicateShard
	count  atomic.Uint64 // of ranges reported
}

const (
	duplicateFlows  = 1 << 14 // a power of two
	duplicateShards = 16
	duplicateSlots  = 64 // of a shard, a power of two
	// maxDuplicates bounds the ranges of a flow that wait for an ACK: what comes beyond is not
	// reported.
	maxDuplicates = 8
	// duplicateAge says for how long: only an ACK without data takes a range along.
	duplicateAge = 200 * time.Millisecond
	// maxBlocks gives the most SACK blocks of a segment (RFC 2018 section 3).
	maxBlocks = 4
)

// duplicateFlow holds what is known of a flow that has agreed on SACK.
type duplicateFlow struct {
	// state holds the upper 28 bits of the hash, the flags below and the number that netstack
	// expects next, as far as is known. 0: there is no flow.
	state atomic.Uint64
	acked atomic.Uint32 // the ACK number sent last
}

// The flags of duplicateFlow.state.
const (
	nextKnown    = 1 << (32 + iota) // an ACK has been sent since the SYN
	windowClosed                    // the last window sent is 0
	gapsTold                        // SACK blocks were sent, which the slot has
	copiesWait                      // the slot has ranges to report

	duplicateFlags = nextKnown | windowClosed | gapsTold | copiesWait
	duplicateTag   = ^uint64(1<<36 - 1) // the bits of the hash
)

// duplicateShard holds what few flows need. Its mutex is taken with that of a send queue held.
type duplicateShard struct {
	mu    sync.Mutex
	slots [duplicateSlots]duplicateSlot
}

// duplicateSlot holds the SACK blocks sent last and the ranges to report of one flow, of two in one
// place the later's. The shard's mutex guards it.
type duplicateSlot struct {
	hash   uint64
	blocks [maxBlocks]span
	told   int // of blocks
	copies [maxDuplicates]span
	waits  int // of copies, the oldest first
	at     tcpip.MonotonicTime
}

func (d *duplicates) open(clock tcpip.Clock) {
	d.clock, d.flows = clock, make([]duplicateFlow, duplicateFlows)
}

// flow returns the place of a flow, and its state if that is the flow's.
func (d *duplicates) flow(hash uint64) (f *duplicateFlow, state uint64, known bool) {
	f = &d.flows[hash&(duplicateFlows-1)]
	state = f.state.Load()
	return f, state, (state^hash)&duplicateTag == 0 && state != 0
}

// slot returns the shard and the slot of a flow, which may be another's.
func (d *duplicates) slot(hash uint64) (*duplicateShard, *duplicateSlot) {
	shard := &d.shards[hash>>60&(duplicateShards-1)]
	return shard, &shard.slots[hash>>40&(duplicateSlots-1)]
}

// noteOwnSYN takes note of a SYN or SYN-ACK of ours, with which a flow begins.
func (d *duplicates) noteOwnSYN(s *hdr.Segment) {
	_, hash := s.Flow()
	f, _, known := d.flow(hash)
	if _, _, sack := hdr.SYNOptions(s.TCP()); sack {
		f.state.Store(hash & duplicateTag)
	} else if known {
		f.state.Store(0)
	}
}

// received takes note of a SYN-ACK of the peer's, which may not agree on SACK.
func (d *duplicates) received(s *hdr.Segment) {
	const mask = hdr.FlagSYN | hdr.FlagACK
	if s.Flags()&mask != mask {
		return
	}
	_, hash := s.Flow()
	f, _, known := d.flow(hash)
	if _, _, sack := hdr.SYNOptions(s.TCP()); known && !sack {
		f.state.Store(0)
	}
}

// arrives takes note of data that netstack is about to get, from seq up to end, with a FIN if there
// is one.
func (d *duplicates) arrives(hash uint64, seq, end uint32) {
	f, state, known := d.flow(hash)
	for ; known && state&nextKnown != 0; f, state, known = d.flow(hash) {
		next := uint32(state)
		if hdr.Before(next, seq) {
			if state&gapsTold != 0 {
				d.addSACKed(f, hash, span{seq, end})
			}
			return
		}
		if hdr.Before(next, end) && state&windowClosed == 0 &&
			!f.state.CompareAndSwap(state, state&^(1<<32-1)|uint64(end)) {
			continue
		}
		switch {
		case !hdr.Before(next, end):
			d.add(f, hash, span{seq, end})
		case seq != next:
			d.add(f, hash, span{seq, next})
		case state&gapsTold != 0:
			d.addSACKed(f, hash, span{seq, end})
		}
		return
	}
}

// add keeps a range for the next ACK.
func (d *duplicates) add(f *duplicateFlow, hash uint64, x span) {
	shard, slot := d.slot(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	d.addTo(slot, f, hash, x)
}

// addSACKed keeps that part of a range that SACK blocks have told of, the first if there are
// several.
func (d *duplicates) addSACKed(f *duplicateFlow, hash uint64, x span) {
	shard, slot := d.slot(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if slot.hash != hash {
		return
	}
	found := span{x.end, x.end}
	for _, b := range slot.blocks[:slot.told] {
		if hdr.Before(b.seq, x.seq) {
			b.seq = x.seq
		}
		if hdr.Before(x.end, b.end) {
			b.end = x.end
		}
		if hdr.Before(b.seq, b.end) && hdr.Before(b.seq, found.seq) {
			found = b
		}
	}
	if found.seq != found.end {
		d.addTo(slot, f, hash, found)
	}
}

// addTo keeps a range. The shard's mutex is held.
func (d *duplicates) addTo(slot *duplicateSlot, f *duplicateFlow, hash uint64, x span) {
	if slot.hash != hash {
		*slot = duplicateSlot{hash: hash}
	}
	if slot.waits == maxDuplicates {
		return
	}
	slot.copies[slot.waits], slot.at = x, d.clock.NowMonotonic()
	slot.waits++
	f.setFlags(hash, copiesWait, 0)
}

// setFlags sets and clears flags of a flow.
func (f *duplicateFlow) setFlags(hash, set, clear uint64) {
	for {
		state := f.state.Load()
		if (state^hash)&duplicateTag != 0 || state == 0 ||
			f.state.CompareAndSwap(state, state&^clear|set) {
			return
		}
	}
}

// answers reports whether an ACK of the flow has something to report, for which it must not wait.
func (d *duplicates) answers(hash uint64) bool {
	_, state, known := d.flow(hash)
	return known && state&copiesWait != 0
}

// sent takes note of an outgoing segment, and adds what came twice to a pure ACK. What it returns,
// unless nil, is to be sent in place of pkt, and the caller's to release. It is called last: the
// segment's options are not read again.
func (d *duplicates) sent(pkt *gstack.PacketBuffer, s *hdr.Segment) (grown *gstack.PacketBuffer) {
	switch s.Flags() & (hdr.FlagSYN | hdr.FlagRST | hdr.FlagACK) {
	case hdr.FlagSYN, hdr.FlagSYN | hdr.FlagACK:
		d.noteOwnSYN(s)
		return nil
	case hdr.FlagACK:
	default:
		return nil
	}
	_, hash := s.Flow()
	f, state, known := d.flow(hash)
	if !known {
		return nil
	}
	_, ack := hdr.Numbers(s.TCP())
	pure := s.Payload == 0 && s.Flags()&hdr.FlagFIN == 0
	a := ownACK{ack: ack, closed: s.Window() == 0}
	a.again = pure && state&nextKnown != 0 && ack == f.acked.Load()
	if !a.again {
		f.acked.Store(ack)
	}
	f.noteACK(hash, &a)
	if pure && (state&(gapsTold|copiesWait) != 0 || s.MayHaveSACK()) {
		return d.report(pkt, s, f, &a)
	}
	return nil
}

// ownACK describes an ACK of ours.
type ownACK struct {
	ack    uint32
	again  bool // it has the number of the one before, and nothing else
	closed bool // it has no window
}

// refuses reports whether netstack may have refused data beyond the ACK number.
func (a *ownACK) refuses() bool { return a.again || a.closed }

// noteACK takes note of what netstack expects next.
func (f *duplicateFlow) noteACK(hash uint64, a *ownACK) {
	for {
		state := f.state.Load()
		if (state^hash)&duplicateTag != 0 || state == 0 {
			return
		}
		now := state&^windowClosed | nextKnown
		if a.closed {
			now |= windowClosed
		}
		if state&nextKnown == 0 || hdr.Before(uint32(state), a.ack) || a.refuses() {
			now = now&^(1<<32-1) | uint64(a.ack)
		}
		if now == state || f.state.CompareAndSwap(state, now) {
			return
		}
	}
}

// report adds a range to an ACK, if one waits that it answers, and takes note of its SACK blocks.
// Where the ACK grows, a packet of ours is returned that has all of it.
func (d *duplicates) report(pkt *gstack.PacketBuffer, s *hdr.Segment, f *duplicateFlow,
	a *ownACK) (grown *gstack.PacketBuffer) {
	_, hash := s.Flow()
	shard, slot := d.slot(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if slot.hash != hash {
		*slot = duplicateSlot{hash: hash}
	}
	slot.noteBlocks(s.Options().SACK)
	if slot.waits > 0 && d.clock.NowMonotonic().Sub(slot.at) > duplicateAge {
		slot.waits = 0
	}
	if x, any := slot.take(a); any {
		var added bool
		if grown, added = prependBlock(pkt, s, x); added {
			d.count.Add(1)
		}
	}
	var set uint64
	if slot.told > 0 {
		set |= gapsTold
	}
	if slot.waits > 0 {
		set |= copiesWait
	}
	f.setFlags(hash, set, (gapsTold|copiesWait)&^set)
	return grown
}

// noteBlocks takes note of a SACK option; nil: there is none.
func (x *duplicateSlot) noteBlocks(sack []byte) {
	x.told = 0
	for ; len(sack) >= 10 && x.told < maxBlocks; sack = sack[8:] {
		from, to := binary.BigEndian.Uint32(sack[2:]), binary.BigEndian.Uint32(sack[6:])
		x.blocks[x.told] = span{from, to}
		x.told++
	}
}

// take removes the oldest range that an ACK answers, and those that netstack has refused.
func (x *duplicateSlot) take(a *ownACK) (first span, any bool) {
	left := x.copies[:0]
	for _, c := range x.copies[:x.waits] {
		come := !hdr.Before(a.ack, c.end)
		switch {
		case !any && (come || covered(x.blocks[:min(x.told, 1)], c.seq, c.end)):
			first, any = c, true
		case come, !a.refuses(), covered(x.blocks[:x.told], c.seq, c.end):
			left = append(left, c)
		}
	}
	x.waits = len(left)
	return first, any
}

const (
	maxTCPHeader = 60
	blockLen     = 8
	firstBlock   = 4 + blockLen // with what comes in front of it
)

// prependBlock makes a range the first SACK block of a pure ACK, and reports whether it could. The
// headers need not have room: what they grow by follows in the data of another packet, which is
// returned. pkt itself stays as long as it is: an ACK that was held is written by another goroutine
// than netstack's, which reads its size behind the write (pkg/tcpip/stack/nic.go, writeRawPacket).
func prependBlock(pkt *gstack.PacketBuffer, s *hdr.Segment, x span) (grown *gstack.PacketBuffer,
	added bool) {
	header, sack := int(s.TCP()[12]>>4)*4, s.Options().SACK
	at := header - len(sack)
	if len(s.TCP()) != header || pkt.Data().Size() > 0 ||
		sack != nil && (len(sack) < 2+blockLen || &s.TCP()[at] != &sack[0]) {
		return nil, false
	}
	var room [hdr.EthLen + 2*maxTCPHeader]byte
	frame := append(room[:0], s.Frame...)
	switch {
	case sack == nil && header+firstBlock > maxTCPHeader:
		return nil, false
	case sack == nil:
		frame = append(frame, hdr.OptNop, hdr.OptNop, hdr.OptSACK, 2)
		at, header = header+2, header+firstBlock
		frame = frame[:s.L4+header]
	case header+blockLen <= maxTCPHeader && len(sack) < 2+maxBlocks*blockLen:
		header += blockLen
		frame = frame[:s.L4+header]
	}
	tcp := frame[s.L4:]
	blocks := tcp[at+2:]
	copy(blocks[blockLen:], blocks)
	binary.BigEndian.PutUint32(blocks, x.seq)
	binary.BigEndian.PutUint32(blocks[4:], x.end)
	tcp[at+1], tcp[12] = byte(header-at), tcp[12]&15|byte(header/4<<4)
	s.Seal(frame)
	if n := copy(s.Frame, frame); n < len(frame) {
		grown = pkt.Clone()
		grown.Data().AppendView(buffer.NewViewWithData(frame[n:]))
	}
	return grown, true
}
