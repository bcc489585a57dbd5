// Package neighbours extends netstack's neighbour tables: packets wait for neighbours that are
// being resolved, bounded in bytes, and an address that moves to another host is found there at
// once.
package neighbours

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

const (
	// maxUnresolvedBytes says what waits for one neighbour's hardware address, in bytes of memory:
	// Linux's default of net.ipv4.neigh.default.unres_qlen_bytes.
	maxUnresolvedBytes = 212992
	// maxUnresolvedTotal bounds what waits for all neighbours, in bytes of memory.
	maxUnresolvedTotal = 16 << 20
	// maxResolving says for how many neighbours netstack is asked at a time. Its table has 512
	// entries, and the oldest makes room for a newcomer even if it is being resolved.
	maxResolving = 448
	// maxResolveAttempts says how often a neighbour is asked for whose entry has been evicted.
	maxResolveAttempts = 3
	// arpLockTime says for how long an entry is kept after a change if answers differ: Linux's
	// default of net.ipv4.neigh.default.locktime, 100 of its 100 ticks per second.
	arpLockTime = time.Second
	// usableSlots gives the size of the table of neighbours with a hardware address, a power of
	// two.
	usableSlots = 1024
)

// Table extends netstack's neighbour table in two respects. It holds packets for neighbours
// that are being resolved, per neighbour and bounded in bytes, where netstack has room for 64
// neighbours and fails what the oldest of them waits for. And it applies Linux's rules for who may
// change an entry (net/ipv4/arp.c arp_process, net/core/neighbour.c __neigh_update), by which an
// address that moves to another host is found there at once.
//
// It is a gstack.NUDDispatcher, called with netstack's locks held: known is taken there and is the
// innermost lock. Any goroutine may use it.
type Table struct {
	clock clock.Clock
	log   *slog.Logger
	name  string
	net   *gstack.Stack // written before the link is in use

	// usable holds neighbours that packets may go to without a look at queues: each slot one of
	// those whose addresses hash to it.
	usable [usableSlots]atomic.Pointer[tcpip.Address]
	moves  atomic.Uint64 // changes of hardware addresses
	drops  atomic.Uint64 // packets that newer ones for the same neighbour replaced
	floods atomic.Uint64 // packets beyond maxUnresolvedTotal

	known   sync.Mutex
	entries map[tcpip.Address]tableEntry // those of netstack's table; guarded by known

	queued atomic.Int64 // len(queues)
	closed atomic.Bool  // set with mu held; netstack's answers come to nothing then

	mu        sync.Mutex
	queues    map[tcpip.Address]*heldPackets // guarded by mu, as is what follows
	waiting   []tcpip.Address                // of queues, those that netstack is not yet asked for
	resolving int
	bytes     int // of all queues
	logLimit  env.RateLimit
}

// tableEntry holds what netstack's table has of a neighbour.
type tableEntry struct {
	mac     tcpip.LinkAddress
	state   gstack.NeighborState
	changed time.Time   // when the state or the address was another one last
	doubt   clock.Timer // since the last announcement of another address; nil: there was none
}

// heldPackets holds the packets that wait for one neighbour, oldest first.
type heldPackets struct {
	packets  []*gstack.PacketBuffer
	bytes    int
	nic      *NIC
	local    tcpip.Address // the source of the first, to ask from
	attempts int
}

var _ gstack.NUDDispatcher = (*Table)(nil)

// NewTable returns a table without entries. Log lines name the interface.
func NewTable(c clock.Clock, log *slog.Logger, name string) *Table {
	return &Table{clock: c, log: log, name: name,
		entries: map[tcpip.Address]tableEntry{}, queues: map[tcpip.Address]*heldPackets{},
		logLimit: env.RateLimit{Burst: 1, Period: time.Minute}}
}

// Use gives the table its netstack, before the link is in use.
func (n *Table) Use(net *gstack.Stack) { n.net = net }

// Moves returns how often a neighbour's hardware address has changed.
func (n *Table) Moves() uint64 { return n.moves.Load() }

// Dropped returns how many packets newer ones for the same neighbour have replaced, and how many
// found too many waiting for all neighbours.
func (n *Table) Dropped() (replaced, beyond uint64) { return n.drops.Load(), n.floods.Load() }

// Waits reports whether packets wait for a neighbour.
func (n *Table) Waits() bool { return n.queued.Load() > 0 }

// OnNeighborAdded implements gstack.NUDDispatcher.
func (n *Table) OnNeighborAdded(nic tcpip.NICID, e gstack.NeighborEntry) { n.note(nic, e) }

// OnNeighborChanged implements gstack.NUDDispatcher.
func (n *Table) OnNeighborChanged(nic tcpip.NICID, e gstack.NeighborEntry) { n.note(nic, e) }

// OnNeighborRemoved implements gstack.NUDDispatcher.
func (n *Table) OnNeighborRemoved(nic tcpip.NICID, e gstack.NeighborEntry) {
	if nic != env.NIC {
		return
	}
	n.known.Lock()
	defer n.known.Unlock()
	if doubt := n.entries[e.Addr].doubt; doubt != nil {
		doubt.Stop()
	}
	delete(n.entries, e.Addr)
	n.unpublish(e.Addr)
}

// note takes over an entry of netstack's table as it is now.
func (n *Table) note(nic tcpip.NICID, e gstack.NeighborEntry) {
	if nic != env.NIC {
		return
	}
	n.known.Lock()
	defer n.known.Unlock()
	old := n.entries[e.Addr]
	if len(old.mac) > 0 && old.mac != e.LinkAddr {
		n.moves.Add(1)
	}
	n.entries[e.Addr] = tableEntry{e.LinkAddr, e.State, n.clock.Now(), old.doubt}
	if !hasLinkAddress(e.State) {
		n.unpublish(e.Addr)
	}
}

// entry returns what netstack's table has of a; the zero value, which is Unknown: nothing.
func (n *Table) entry(a tcpip.Address) tableEntry {
	n.known.Lock()
	defer n.known.Unlock()
	return n.entries[a]
}

// hasLinkAddress reports whether packets go to a neighbour in that state.
func hasLinkAddress(s gstack.NeighborState) bool {
	return s != gstack.Unknown && s != gstack.Incomplete && s != gstack.Unreachable
}

// slot returns where a may be in usable.
func (n *Table) slot(a tcpip.Address) *atomic.Pointer[tcpip.Address] {
	low := binary.BigEndian.Uint32(a.AsSlice()[a.Len()-4:])
	return &n.usable[low*0x9e3779b1>>22&(usableSlots-1)]
}

// unpublish ends the short way of packets to a. known is held.
func (n *Table) unpublish(a tcpip.Address) {
	if s := n.slot(a); s.Load() != nil && *s.Load() == a {
		s.Store(nil)
	}
}

// NIC wraps netstack's interface as its protocols see it, with a queue for each neighbour that is
// being resolved and with Linux's rules for changes of entries.
type NIC struct {
	gstack.NetworkInterface
	Table    *Table
	Protocol tcpip.NetworkProtocolNumber
	Failed   func(*gstack.PacketBuffer) // reports a packet whose neighbour does not answer
}

// nextHop returns the neighbour that packets of r go to.
func nextHop(r *gstack.Route) tcpip.Address {
	if hop := r.NextHop(); hop.Len() != 0 {
		return hop
	}
	return r.RemoteAddress()
}

// Ready reports whether packets of r can go straight to the link: the hardware address of their
// neighbour is known, and none is held that they would overtake.
func (n *Table) Ready(r *gstack.Route) bool {
	if !r.IsResolutionRequired() {
		return true
	}
	hop := nextHop(r)
	if n.queued.Load() > 0 {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.queues[hop] != nil {
			return false
		}
	}
	return n.publish(hop)
}

// WritePacket implements gstack.NetworkInterface.
func (i *NIC) WritePacket(r *gstack.Route, pkt *gstack.PacketBuffer) tcpip.Error {
	hop := nextHop(r)
	n := i.Table
	if n.queued.Load() == 0 {
		if usable := n.slot(hop).Load(); usable != nil && *usable == hop {
			return i.NetworkInterface.WritePacket(r, pkt)
		}
	}
	if r.IsResolutionRequired() {
		if held, err := n.hold(i, hop, r.LocalAddress(), pkt); held || err != nil {
			return err
		}
	}
	return i.NetworkInterface.WritePacket(r, pkt)
}

// hold keeps a copy of pkt if the hardware address of its next hop is not known yet.
func (n *Table) hold(i *NIC, hop, local tcpip.Address,
	pkt *gstack.PacketBuffer) (held bool, err tcpip.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := n.queues[hop]
	if q == nil && n.publish(hop) {
		return false, nil
	}
	size := pkt.MemSize()
	switch {
	case n.closed.Load():
		return false, &tcpip.ErrNetworkUnreachable{}
	case n.bytes+size > maxUnresolvedTotal:
		n.floods.Add(1)
		n.warn("packets are dropped: too many neighbours are asked for that do not answer")
		return false, &tcpip.ErrNoBufferSpace{}
	case q == nil:
		q = &heldPackets{nic: i, local: local}
		n.queues[hop] = q
		n.queued.Add(1)
		n.waiting = append(n.waiting, hop)
		n.resolveNext()
	}
	for len(q.packets) > 0 && q.bytes+size > maxUnresolvedBytes {
		n.dropOldest(q)
	}
	clone := pkt.Clone()
	if pkt.TransportProtocolNumber == header.TCPProtocolNumber {
		clone.Owner = nil // which is told with the connection's lock held only
	}
	q.packets = append(q.packets, clone)
	q.bytes += size
	n.bytes += size
	return true, nil
}

// publish lets packets to a neighbour pass if its hardware address is known, and says whether it
// is.
func (n *Table) publish(hop tcpip.Address) bool {
	n.known.Lock()
	defer n.known.Unlock()
	if !hasLinkAddress(n.entries[hop].state) {
		return false
	}
	n.slot(hop).Store(&hop)
	return true
}

// dropOldest makes room for a newer packet to the same neighbour. mu is held.
func (n *Table) dropOldest(q *heldPackets) {
	size := q.packets[0].MemSize()
	q.packets[0].DecRef()
	q.packets[0] = nil
	q.packets = q.packets[1:]
	q.bytes -= size
	n.bytes -= size
	n.drops.Add(1)
	n.warn("packets are dropped: more wait for one neighbour's hardware address than it may")
}

// warn logs a line, one per minute at most. mu is held.
func (n *Table) warn(what string) {
	if ok, missed := n.logLimit.Allows(n.clock.Now()); ok {
		n.log.Warn(what, "interface", n.name, "neighbours", len(n.queues), "bytes", n.bytes,
			"more", missed)
	}
}

// resolveNext asks netstack for as many of the neighbours that wait as it may. It asks on another
// goroutine, for the caller may hold locks of netstack. mu is held.
func (n *Table) resolveNext() {
	for n.resolving < maxResolving && len(n.waiting) > 0 {
		hop := n.waiting[0]
		n.waiting = n.waiting[1:]
		n.resolving++
		q := n.queues[hop]
		n.clock.AfterFunc(0, func() { n.resolve(hop, q.nic, q.local) })
	}
}

// resolve asks netstack for a neighbour's hardware address.
func (n *Table) resolve(hop tcpip.Address, i *NIC, local tcpip.Address) {
	if !i.CheckLocalAddress(i.Protocol, local) {
		local = tcpip.Address{}
	}
	err := n.net.GetLinkAddress(env.NIC, hop, local, i.Protocol,
		func(r gstack.LinkResolutionResult) { // with netstack's locks held
			if n.closed.Load() {
				return // netstack aborts all questions when it ends
			}
			n.clock.AfterFunc(0, func() { n.resolved(hop, r.LinkAddress, r.Err) })
		})
	if _, asked := err.(*tcpip.ErrWouldBlock); err != nil && !asked {
		n.resolved(hop, "", err)
	}
}

// AskAgain asks at once for the neighbours that are being resolved. It is for a link that is up
// again: the questions before were lost, and netstack gives up after the last of them.
func (n *Table) AskAgain() {
	n.remove(func(e tableEntry) bool { return !hasLinkAddress(e.state) })
}

// Forget removes every neighbour but those that were set by hand. It is for a link that had no
// carrier: what neighbours have told meanwhile was not heard, and netstack would send to the
// hardware address of one that has another now until it asks by itself, a minute later or more. As
// Linux does (neigh_carrier_down of net/core/neighbour.c).
func (n *Table) Forget() {
	n.remove(func(e tableEntry) bool { return e.state != gstack.Static })
}

// remove removes entries of netstack's table. Those that packets wait for are asked for anew.
func (n *Table) remove(which func(tableEntry) bool) {
	n.mu.Lock()
	for _, q := range n.queues {
		q.attempts = 0
	}
	n.mu.Unlock()
	n.known.Lock()
	entries := maps.Clone(n.entries)
	n.known.Unlock()
	for hop, e := range entries {
		if !which(e) {
			continue
		}
		protocol := header.IPv6ProtocolNumber
		if hop.Len() == header.IPv4AddressSize {
			protocol = header.IPv4ProtocolNumber
		}
		_ = n.net.RemoveNeighbor(env.NIC, protocol, hop) // aborts questions, see takeHeld
	}
}

// resolved sends what waits for a neighbour, or reports that it cannot be sent.
func (n *Table) resolved(hop tcpip.Address, mac tcpip.LinkAddress, err tcpip.Error) {
	for {
		q, packets := n.takeHeld(hop, err)
		for _, pkt := range packets {
			if err == nil {
				_ = q.nic.WritePacketToRemote(mac, pkt)
			} else {
				n.net.Stats().IP.OutgoingPacketErrors.Increment()
				if !answersSYN(pkt) {
					q.nic.Failed(pkt)
				}
			}
			pkt.DecRef()
		}
		if err != nil || len(packets) == 0 {
			return
		}
	}
}

// answersSYN reports whether a packet is a SYN-ACK. The handshake sends it again: that a client's
// host does not answer for three seconds, as behind a cable that was out, does not end it (RFC 1122
// section 4.2.3.9). netstack would end it, and reset the client's data, which may follow at once.
func answersSYN(pkt *gstack.PacketBuffer) bool {
	const synACK = header.TCPFlagSyn | header.TCPFlagAck
	tcp := header.TCP(pkt.TransportHeader().Slice())
	return pkt.TransportProtocolNumber == header.TCPProtocolNumber &&
		len(tcp) >= header.TCPMinimumSize && tcp.Flags()&synACK == synACK
}

// takeHeld removes the packets of a neighbour from its queue, and the queue once it is empty, so
// that nothing overtakes what was held. After a failure the queue ends at once: what comes next
// asks again. An entry that was evicted is asked for again, and there are no packets then.
func (n *Table) takeHeld(hop tcpip.Address,
	err tcpip.Error) (*heldPackets, []*gstack.PacketBuffer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := n.queues[hop]
	if q == nil { // closed
		return nil, nil
	}
	if _, evicted := err.(*tcpip.ErrAborted); evicted && q.attempts < maxResolveAttempts {
		q.attempts++
		n.resolving--
		n.waiting = append(n.waiting, hop)
		n.resolveNext()
		return q, nil
	}
	packets := q.packets
	n.bytes -= q.bytes
	q.packets, q.bytes = nil, 0
	if err != nil || len(packets) == 0 {
		delete(n.queues, hop)
		n.queued.Add(-1)
		n.resolving--
		n.resolveNext()
	}
	return q, packets
}

// Close drops all that is held.
func (n *Table) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed.Store(true)
	for hop, q := range n.queues {
		for _, pkt := range q.packets {
			pkt.DecRef()
		}
		delete(n.queues, hop)
		n.queued.Add(-1)
	}
	n.waiting, n.bytes = nil, 0
}

// HandleNeighborProbe implements gstack.NetworkInterface: a host asks for an address of ours and
// says which its own is. Of IPv4, it is called by [NIC.HeardARP] in netstack's place.
func (i *NIC) HandleNeighborProbe(p tcpip.NetworkProtocolNumber, a tcpip.Address,
	mac tcpip.LinkAddress) tcpip.Error {
	if p == header.IPv4ProtocolNumber || !i.isNeighbour(p, a) {
		return nil
	}
	return i.NetworkInterface.HandleNeighborProbe(p, a, mac)
}

// HandleNeighborConfirmation implements gstack.NetworkInterface: a host says which its address is,
// likewise.
func (i *NIC) HandleNeighborConfirmation(p tcpip.NetworkProtocolNumber, a tcpip.Address,
	mac tcpip.LinkAddress, flags gstack.ReachabilityConfirmationFlags) tcpip.Error {
	if p == header.IPv4ProtocolNumber || !i.isNeighbour(p, a) {
		return nil
	}
	return i.confirm(p, a, mac, flags)
}

// confirm makes netstack change an entry, if there is one.
//
// netstack takes the acknowledgement of what was sent before an announcement for one of the address
// announced (handleUpperLevelConfirmation), and keeps to that for up to 45 s, even where it is the
// older one of two announcements. Linux wants a later acknowledgement. So a second later the entry
// becomes stale, by an announcement of another address that does not override.
func (i *NIC) confirm(p tcpip.NetworkProtocolNumber, a tcpip.Address,
	mac tcpip.LinkAddress, flags gstack.ReachabilityConfirmationFlags) tcpip.Error {
	n := i.Table
	before := n.entry(a)
	err := i.NetworkInterface.HandleNeighborConfirmation(p, a, mac, flags)
	n.known.Lock()
	defer n.known.Unlock()
	e, ok := n.entries[a]
	switch {
	case err != nil || !ok || !flags.Override || len(mac) == 0:
	case flags.Solicited && e.state == gstack.Reachable && e.mac != mac: // not reported by netstack
		n.moves.Add(1)
		n.entries[a] = tableEntry{mac, e.state, n.clock.Now(), e.doubt}
	case !flags.Solicited && hasLinkAddress(before.state) && before.mac != mac:
		if e.doubt != nil {
			e.doubt.Stop()
		}
		e.doubt = n.clock.AfterFunc(time.Second, func() {
			if e := n.entry(a); e.state == gstack.Reachable && e.mac == mac {
				_ = i.NetworkInterface.HandleNeighborConfirmation(p, a, before.mac,
					gstack.ReachabilityConfirmationFlags{IsRouter: true})
			}
		})
		n.entries[a] = e
	}
	return err
}

// isNeighbour reports whether a can be the address of another host on the link. No entry is made
// for any other: for addresses of our own, the sender 0.0.0.0 of probes (RFC 5227 section 1.1),
// groups.
func (i *NIC) isNeighbour(p tcpip.NetworkProtocolNumber, a tcpip.Address) bool {
	switch {
	case i.CheckLocalAddress(p, a), a.Unspecified():
		return false
	case p == header.IPv4ProtocolNumber:
		return !header.IsV4MulticastAddress(a) && !header.IsV4LoopbackAddress(a) &&
			!i.IsBroadcast(a)
	}
	return !header.IsV6MulticastAddress(a) && !header.IsV6LoopbackAddress(a)
}

// IsBroadcast reports whether the IPv4 address a stands for all hosts.
func (i *NIC) IsBroadcast(a tcpip.Address) bool {
	return a == header.IPv4Broadcast ||
		i.Table.net.IsSubnetBroadcast(env.NIC, header.IPv4ProtocolNumber, a)
}

// HeardARP updates the table by a valid ARP packet as arp_process of Linux's net/ipv4/arp.c does.
// toUs says that its frame was for our hardware address alone.
func (i *NIC) HeardARP(h header.ARP, toUs bool) {
	mac := tcpip.LinkAddress(h.HardwareAddressSender())
	sender := tcpip.AddrFrom4Slice(h.ProtocolAddressSender())
	target := tcpip.AddrFrom4Slice(h.ProtocolAddressTarget())
	reply := h.Op() == header.ARPReply
	switch {
	case !reply && h.Op() != header.ARPRequest,
		header.IsV4MulticastAddress(target), header.IsV4LoopbackAddress(target),
		!i.isNeighbour(header.IPv4ProtocolNumber, sender):
		return
	case !reply && !i.IsBroadcast(target) && i.CheckLocalAddress(header.IPv4ProtocolNumber, target):
		_ = i.NetworkInterface.HandleNeighborProbe(header.IPv4ProtocolNumber, sender, mac)
		return
	}
	e := i.Table.entry(sender)
	if e.state == gstack.Unknown {
		return
	}
	// An announcement names its sender twice, in a reply its hardware address as well.
	gratuitous := sender == target &&
		(!reply || mac == tcpip.LinkAddress(h.HardwareAddressTarget()))
	override := gratuitous || i.Table.clock.Since(e.changed) > arpLockTime
	reachable := reply && toUs
	switch {
	case e.state == gstack.Unreachable:
		_ = i.NetworkInterface.HandleNeighborProbe(header.IPv4ProtocolNumber, sender, mac)
	case hasLinkAddress(e.state) && (e.mac != mac && !override || e.mac == mac && !reachable):
		return
	}
	_ = i.confirm(header.IPv4ProtocolNumber, sender, mac,
		gstack.ReachabilityConfirmationFlags{Solicited: reachable, Override: override})
}
