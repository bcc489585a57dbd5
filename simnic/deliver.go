package simnic

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// frameOrigin says where a frame entered.
type frameOrigin struct {
	owner  owner
	domain bool // sent by a send queue of transport domain td
	td     uint32
	waited *atomic.Bool // set when a frame had to wait for its receiver; nil: not needed
}

// blocksLoopback reports whether a TIR must not get the frame because its own
// transport domain sent it.
func (n *NIC) blocksLoopback(o frameOrigin, t *TIRAttr, c cast) bool {
	if !o.domain || o.td != t.TD || n.cfg.SelfLoopback {
		return false
	}
	if c == unicast {
		return !t.SelfLoopbackUnicast
	}
	return !t.SelfLoopbackMulticast
}

// ConnectWire connects the port to w and starts reception. The NIC owns w from then
// on: Close closes it. A second wire is refused with StatusBadState.
func (n *NIC) ConnectWire(w wire.Wire) error { return n.wire.attachWire(w, n.fromWire) }

// ConnectNetdev connects w as the netdev port: it gets the frames of
// the netdev's MAC, broadcast and multicast, and sends beside the user queues.
func (n *NIC) ConnectNetdev(w wire.Wire) error { return n.netdev.attachWire(w, n.fromNetdev) }

// maxFrame returns the longest frame that the port accepts, without FCS.
func (n *NIC) maxFrame() int { return n.MTU() + frame.EtherHeader + frame.VLANTag }

// countEntry counts a frame at its entry and reports whether it is processed further.
func (n *NIC) countEntry(b *rxBurst, o owner, f *frame.Frame) bool {
	packets := f.Packets()
	bytes := len(f.Data) + (packets-1)*int(f.HdrLen)
	if len(f.Data) < frame.EtherHeader {
		b.entered.countPackets(n.counters.entryCounter(o), unicast, packets, bytes)
		n.counters.addTo(ctrWireRunt, packets)
		return false
	}
	dst := macBits(f.Data)
	kind := castOf(dst)
	b.entered.countPackets(n.counters.entryCounter(o), kind, packets, bytes)
	switch {
	case !n.linkUp.Load() || n.closed.Load() || n.fatal.Load():
		n.counters.addTo(ctrLinkDown, packets)
		return false
	case o == ownerWire && f.Longest() > n.maxFrame():
		n.counters.addTo(ctrWireOversize, packets)
		return false
	case o == ownerWire && !n.eswitch.passesTo(dst, kind):
		n.counters.addTo(ctrSwitchFilter, packets)
		return false
	case o != ownerWire && n.eswitch.spoof != 0 && n.eswitch.spoof != macBits(f.Data[6:]):
		n.counters.addTo(ctrSpoofed, packets)
		return false
	}
	return true
}

// entryCounter returns the counter for frames that an owner sent, or that came from the wire.
func (c *counters) entryCounter(o owner) *direction {
	if o == ownerWire {
		return &c.rx[o]
	}
	return &c.tx[o]
}

// fromWire receives a batch from the wire.
func (n *NIC) fromWire(frames []frame.Frame) {
	b := n.getBurst()
	defer n.putBurst(b)
	o := frameOrigin{owner: ownerWire}
	for i := range frames {
		f := frames[i]
		f.MeasureHeader()
		if !n.countEntry(b, ownerWire, &f) {
			continue
		}
		if n.hasSniffers(sniffReceived) {
			n.deliverToSniffers(b, sniffReceived, &f)
		}
		if n.steerFrame(b, o, &f) == 0 {
			b.routed += f.Packets()
			n.counters.addTo(ctrSteerMissed, f.Packets())
		}
	}
	b.finishBurst()
}

// fromNetdev processes a batch that the netdev sends.
func (n *NIC) fromNetdev(frames []frame.Frame) {
	n.forwardFrames(frameOrigin{owner: ownerNetdev}, frames, false)
}

// forwardFrames processes frames that one owner of the port sends: to the wire, to the other owner,
// or both. mine says that the frames may be changed in place.
func (n *NIC) forwardFrames(o frameOrigin, frames []frame.Frame, mine bool) {
	b := n.getBurst()
	defer n.putBurst(b)
	b.out.mutable = mine
	t := n.steering.now.Load()
	for i := range frames {
		f := frames[i]
		f.Waited = o.waited
		if !mine {
			f.MeasureHeader()
		}
		if !n.countEntry(b, o.owner, &f) {
			continue
		}
		if n.hasSniffers(sniffSent) {
			n.deliverToSniffers(b, sniffSent, &f)
		}
		dst := macBits(f.Data)
		kind := castOf(dst)
		inside := n.staysInside(dst, kind, t)
		if inside && n.steerFrame(b, o, &f) == 0 && kind == unicast {
			b.routed += f.Packets()
			n.counters.addTo(ctrLoopback, f.Packets())
		}
		if kind != unicast || !inside {
			b.routed += f.Packets()
			b.out.queueFrame(&f)
		}
	}
	b.finishBurst()
	b.out.flushEgress()
}

// offloadsTo returns the offloads that every destination of frames with these headers can apply.
func (n *NIC) offloadsTo(header []byte) frame.Offload {
	dst := macBits(header)
	switch {
	case castOf(dst) != unicast:
		return 0
	case n.staysInside(dst, unicast, n.steering.now.Load()):
		return frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6 | frame.OffloadUSO
	}
	return n.wire.wireOffloads()
}

// steerFrame delivers a frame to the destinations that the flow tables and the netdev's filter
// select. It returns how many copies were made: 0 means it has no receiver.
func (n *NIC) steerFrame(b *rxBurst, o frameOrigin, f *frame.Frame) (copies int) {
	b.waited = f.Waited
	b.p = frame.Parse(f.Data)
	matchKey(&b.p, f.Data, &b.key)
	dst := macBits(f.Data)
	kind := castOf(dst)
	t := n.steering.now.Load()
	copies, trapped := n.walkTables(b, t.before, o, f, kind)
	if trapped {
		return copies
	}
	if c := n.classifier.Load(); c != nil {
		return copies + n.deliverByClassifier(*c, b, o, f, kind)
	}
	if kind != unicast || dst == n.mac.Load() {
		if o.owner != ownerNetdev {
			b.routed += f.Packets()
			b.netdev.queueFrame(f)
			copies++
		}
		return copies
	}
	more, _ := n.walkTables(b, t.after, o, f, kind)
	return copies + more
}

// walkTables applies tables in order, up to a rule that leads past the rest. trapped says that a
// rule dropped the frame or took it without DONT_TRAP.
func (n *NIC) walkTables(b *rxBurst, ts []table, o frameOrigin, f *frame.Frame,
	kind cast) (copies int, trapped bool) {
	for i := range ts {
		e := ts[i].firstMatch(&b.key)
		if e == nil {
			continue
		}
		for _, c := range e.counts {
			c.countFrame(f)
		}
		if e.drop {
			b.routed += f.Packets()
			n.counters.addTo(ctrFlowDropped, f.Packets())
			return copies + 1, true
		}
		for _, tir := range e.tirs {
			b.routed += f.Packets()
			n.toTIR(b, tir, o, f, kind, e.tag)
			copies++
		}
		if !e.dontTrap {
			return copies, !e.miss
		}
	}
	return copies, false
}

// toTIR picks the receive queue by the frame's hash and delivers to it.
func (n *NIC) toTIR(b *rxBurst, tir *TIR, o frameOrigin, f *frame.Frame, kind cast, tag uint32) {
	a := tir.attr.Load()
	if n.blocksLoopback(o, a, kind) {
		n.counters.addTo(ctrLoopback, f.Packets())
		return
	}
	if b.passed == 0 {
		b.passed = n.sinceStart()
	}
	pk := &b.packet
	*pk = rxPacket{kind: kind, tag: tag, padded: o.owner == ownerWire}
	if a.LRO.IPv4 || a.LRO.IPv6 {
		pk.lro = &a.LRO
	}
	pk.hash, pk.hashType = tir.hashOf(a, f.Data, &b.p)
	rq := a.RQ
	if a.Table != nil {
		rqs := *a.Table.rqs.Load()
		if len(rqs) == 0 {
			n.counters.addTo(ctrNotReady, f.Packets())
			return
		}
		rq = rqs[pk.hash&uint32(len(rqs)-1)]
	}
	if f.GSO != frame.GSONone && n.deliverSegments(b, rq, f) {
		return
	}
	b.setFrame(f)
	b.lockQueue(rq)
	rq.deliverPacket(b)
}

// hashOf returns the RSS hash of a frame and its hash type. A frame of another kind than the TIR
// selects has hash 0 (model's choice: linux and DPDK install a TIR for each kind).
func (t *TIR) hashOf(a *TIRAttr, data []byte, p *frame.Headers) (hash uint32, kind uint8) {
	var in [36]byte
	s := a.Selection
	if a.Hash == HashNone || s.Fields == 0 {
		return 0, 0
	}
	n := s.addresses(in[:0], data, p, &kind)
	if n == nil {
		return 0, 0
	}
	if s.Fields&(HashSrcPort|HashDstPort) != 0 {
		if n = s.appendPorts(n, data, p, &kind); n == nil {
			return 0, 0
		}
	}
	if a.Symmetric {
		s.orderTuple(n)
	}
	if a.Hash == HashXOR8 {
		return xor8(n), kind
	}
	return t.hash.Load().hashBytes(n), kind
}

// be16 returns a big-endian word of a frame.
func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
