package simnic

import (
	"fmt"
	"sync/atomic"
)

// Traffic counts packets as they would be on a wire, and their bytes without
// FCS. An unsegmented frame counts as the packets it stands for.
type Traffic struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	RxUnicast, RxMulticast, RxBroadcast    uint64 // packets
	TxUnicast, TxMulticast, TxBroadcast    uint64
}

// Drops counts copies of packets by the reason for dropping them.
type Drops struct {
	// where the packet entered
	WireOversize uint64 // longer than MTU + 18 (rx_oversize_pkts_phy)
	WireRunt     uint64 // shorter than an Ethernet header
	LinkDown     uint64
	SwitchFilter uint64 // from the wire, to an address that the e-switch does not pass
	Spoofed      uint64 // sent from an address that the spoof check does not pass

	// on the way out
	WireUnplugged uint64 // no wire, or it refused
	WireTooLong   uint64 // sent, longer than MTU + 18
	NetdevLost    uint64 // no netdev port, or its wire refused
	SteerMissed   uint64 // no receiver for it (rx_steer_missed_packets)
	FlowDropped   uint64 // by a drop rule
	Loopback      uint64 // would have returned to its own sender
	OutOfBuffer   uint64 // receive queue empty (out_of_buffer)
	NotReady      uint64 // receive queue not in the ready state
	TooLong       uint64 // longer than the receive WQE, dropped (eth_wqe_too_small)
	LengthError   uint64 // longer than the receive WQE, error completion
	Protection    uint64 // receive WQE named memory that the queue may not write
	CQError       uint64 // completion queue failed
	Fault         uint64 // dropped by an injected fault
}

// Counters holds a snapshot of the counts of a NIC since its creation.
type Counters struct {
	Slice  Traffic // user queues: completed into receive queues; sent by WQEs
	Netdev Traffic // netdev port: given to it; sent by it
	Wire   Traffic // came in from the wire; left to it
	Drops  Drops

	Routed uint64 // copies of packets made, one per destination

	Doorbells, SendWQEs     uint64
	BlueFlames              uint64 // of the Doorbells, those that carried their WQE
	LSOWQEs                 uint64 // of the SendWQEs, those to be segmented
	ChecksumWQEs            uint64 // those that asked for TCP or UDP checksums
	TxInlineDropped         uint64 // packets of WQEs that inlined too little, lenient mode
	LROPackets              uint64 // packets merged into an earlier one's completion
	CQEs, CompressedCQEs    uint64 // completions written; those inside sessions
	CQOverruns              uint64
	ReqErrors, ReqFlushed   uint64 // error completions of send queues
	RespErrors, RespFlushed uint64 // of receive queues
	CQEvents, StaleArms     uint64
	Violations              uint64
}

// owner is one of the sources and destinations of frames.
type owner uint8

const (
	ownerSlice owner = iota
	ownerNetdev
	ownerWire
	numOwners
)

// counter numbers everything that is not traffic.
type counter uint8

const (
	ctrWireOversize counter = iota
	ctrWireRunt
	ctrLinkDown
	ctrSwitchFilter
	ctrSpoofed
	ctrWireUnplugged
	ctrWireTooLong
	ctrNetdevLost
	ctrSteerMissed
	ctrFlowDropped
	ctrLoopback
	ctrOutOfBuffer
	ctrNotReady
	ctrTooLong
	ctrLengthError
	ctrProtection
	ctrCQError
	ctrFault
	ctrRouted
	ctrDoorbells
	ctrSendWQEs
	ctrBlueFlames
	ctrLSOWQEs
	ctrChecksumWQEs
	ctrTxInlineDropped
	ctrLROPackets
	ctrCQEs
	ctrCompressedCQEs
	ctrCQOverruns
	ctrReqErrors
	ctrReqFlushed
	ctrRespErrors
	ctrRespFlushed
	ctrCQEvents
	ctrStaleArms
	numCounters
)

// cast is the kind of destination address.
type cast uint8

const (
	unicast cast = iota
	multicast
	broadcast
	numCasts
)

func castOf(dst uint64) cast {
	switch {
	case dst == 1<<48-1:
		return broadcast
	case dst>>40&1 != 0:
		return multicast
	}
	return unicast
}

// flow of packets in one direction at one owner.
type direction struct {
	packets [numCasts]atomic.Uint64
	bytes   atomic.Uint64
}

func (d *direction) countPackets(c cast, packets, bytes int) {
	d.packets[c].Add(uint64(packets))
	d.bytes.Add(uint64(bytes))
}

// tally sums the packets of one direction, so that a batch costs one atomic addition.
type tally struct {
	to             *direction
	kind           cast
	packets, bytes int
}

// countPackets counts for d, once flushed.
func (t *tally) countPackets(d *direction, kind cast, packets, bytes int) {
	if t.to != d || t.kind != kind {
		t.flushTally()
		t.to, t.kind = d, kind
	}
	t.packets += packets
	t.bytes += bytes
}

func (t *tally) flushTally() {
	if t.packets > 0 {
		t.to.countPackets(t.kind, t.packets, t.bytes)
		t.packets, t.bytes = 0, 0
	}
}

type counters struct {
	rx, tx [numOwners]direction
	other  [numCounters]atomic.Uint64
}

func (c *counters) addTo(id counter, n int) { c.other[id].Add(uint64(n)) }

func (c *counters) valueOf(id counter) uint64 { return c.other[id].Load() }

// countError counts an error completion of packets sent or received.
func (n *NIC) countError(f fault, failed, flushed counter) {
	if f == faultFlush {
		failed = flushed
	}
	n.counters.addTo(failed, 1)
}

func (c *counters) trafficOf(o owner) Traffic {
	rx, tx := &c.rx[o], &c.tx[o]
	t := Traffic{
		RxBytes: rx.bytes.Load(), TxBytes: tx.bytes.Load(),
		RxUnicast: rx.packets[unicast].Load(), RxMulticast: rx.packets[multicast].Load(),
		RxBroadcast: rx.packets[broadcast].Load(),
		TxUnicast:   tx.packets[unicast].Load(), TxMulticast: tx.packets[multicast].Load(),
		TxBroadcast: tx.packets[broadcast].Load(),
	}
	t.RxPackets = t.RxUnicast + t.RxMulticast + t.RxBroadcast
	t.TxPackets = t.TxUnicast + t.TxMulticast + t.TxBroadcast
	return t
}

// Counters returns a snapshot. It is exact while no frame is in progress.
func (n *NIC) Counters() Counters {
	c := &n.counters
	n.strict.mu.Lock()
	violations := n.strict.count
	n.strict.mu.Unlock()
	return Counters{
		Slice: c.trafficOf(ownerSlice), Netdev: c.trafficOf(ownerNetdev),
		Wire: c.trafficOf(ownerWire),
		Drops: Drops{
			WireOversize: c.valueOf(ctrWireOversize), WireRunt: c.valueOf(ctrWireRunt),
			LinkDown:     c.valueOf(ctrLinkDown),
			SwitchFilter: c.valueOf(ctrSwitchFilter), Spoofed: c.valueOf(ctrSpoofed),
			WireUnplugged: c.valueOf(ctrWireUnplugged), WireTooLong: c.valueOf(ctrWireTooLong),
			NetdevLost:  c.valueOf(ctrNetdevLost),
			SteerMissed: c.valueOf(ctrSteerMissed), FlowDropped: c.valueOf(ctrFlowDropped),
			Loopback:    c.valueOf(ctrLoopback),
			OutOfBuffer: c.valueOf(ctrOutOfBuffer), NotReady: c.valueOf(ctrNotReady),
			TooLong:     c.valueOf(ctrTooLong),
			LengthError: c.valueOf(ctrLengthError), Protection: c.valueOf(ctrProtection),
			CQError: c.valueOf(ctrCQError), Fault: c.valueOf(ctrFault),
		},
		Routed:    c.valueOf(ctrRouted),
		Doorbells: c.valueOf(ctrDoorbells), SendWQEs: c.valueOf(ctrSendWQEs),
		BlueFlames: c.valueOf(ctrBlueFlames), LSOWQEs: c.valueOf(ctrLSOWQEs),
		ChecksumWQEs:    c.valueOf(ctrChecksumWQEs),
		TxInlineDropped: c.valueOf(ctrTxInlineDropped),
		LROPackets:      c.valueOf(ctrLROPackets), CQEs: c.valueOf(ctrCQEs),
		CompressedCQEs: c.valueOf(ctrCompressedCQEs), CQOverruns: c.valueOf(ctrCQOverruns),
		ReqErrors: c.valueOf(ctrReqErrors), ReqFlushed: c.valueOf(ctrReqFlushed),
		RespErrors: c.valueOf(ctrRespErrors), RespFlushed: c.valueOf(ctrRespFlushed),
		CQEvents: c.valueOf(ctrCQEvents), StaleArms: c.valueOf(ctrStaleArms),
		Violations: violations,
	}
}

// Entered returns the number of packets from all sources.
func (c Counters) Entered() uint64 {
	return c.Wire.RxPackets + c.Slice.TxPackets + c.Netdev.TxPackets
}

// Check reports whether every packet is accounted for: each that entered was dropped at its entry
// or copied to one or more destinations, and each copy is in exactly one counter. Call it while no
// frame is in progress.
func (c Counters) Check() error {
	atEntry := c.Drops.WireOversize + c.Drops.WireRunt + c.Drops.LinkDown +
		c.Drops.SwitchFilter + c.Drops.Spoofed
	if c.Routed+atEntry < c.Entered() {
		return fmt.Errorf(
			"simnic: %d packets entered, %d dropped where they entered and only %d copies routed",
			c.Entered(), atEntry, c.Routed)
	}
	d := &c.Drops
	ended := c.Wire.TxPackets + c.Netdev.RxPackets + c.Slice.RxPackets +
		d.WireUnplugged + d.WireTooLong + d.NetdevLost + d.SteerMissed +
		d.FlowDropped + d.Loopback +
		d.OutOfBuffer + d.NotReady + d.TooLong + d.LengthError + d.Protection + d.CQError + d.Fault
	if ended != c.Routed {
		return fmt.Errorf("simnic: %d copies of packets routed, %d ended in a counter", c.Routed,
			ended)
	}
	return nil
}
