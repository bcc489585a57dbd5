package rdma

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Stats holds a snapshot of the endpoint's counters since New, summed over the queues. Those of the
// rings themselves are in dv.Device.Stats.
type Stats struct {
	RxPackets uint64 // delivered to the stack
	RxMerged  uint64 // frames that went into a packet with others
	// RxSupersededACKs is pure ACKs left out, as a later one of the same batch says all that they
	// say; see merge.go. They are in no other counter of the link.
	RxSupersededACKs uint64
	RxVerified       uint64 // frames whose transport checksum was verified in software
	RxZeroWindow     uint64 // ACKs changed because netstack had announced window 0, see tcpfix
	RxSYNRTTFixed    uint64 // segments that echo a SYN sent several times, see tcpfix/syn.go
	RxSACKRemoved    uint64 // ACKs whose SACK was taken out, see tcpfix: gsoSACK, reorder
	RxEchoAged       uint64 // ACKs with an older echo or none, see tcpfix/resend.go
	// RxNarrowWindow counts segments whose window was raised, see tcpfix/window.go.
	RxNarrowWindow uint64
	// RxACKsKept counts acknowledgements of gaps that were too young to be losses, or that came
	// faster than netstack takes them in a recovery, and RxACKsLate those that were delivered for
	// them later, see tcpfix/reorder.go and tcpfix/reports.go.
	RxACKsKept, RxACKsLate uint64

	// RxHandshakeData counts segments that an ACK was delivered in front of, see
	// tcpfix/handshake_data.go.
	RxHandshakeData uint64
	RxPathMTU       uint64 // messages with too small an MTU, see tcpfix/icmp.go
	RxFastPath      uint64 // packets that went to the transport layer directly, see deliver.go
	RxFragments     uint64 // IP fragments whose checksum was left to the stack
	RxBadChecksum   uint64 // dropped: checksum wrong
	RxForged        uint64 // dropped: ICMP about TCP that was never sent, see tcpfix/icmp.go
	RxOtherMAC      uint64 // dropped: for another unicast address
	RxOwn           uint64 // dropped: sent by ourselves
	RxOtherVLAN     uint64 // dropped: of a VLAN that is not ours, or of none when we are in one
	// RxOutOfBuffer is dropped by the NIC as the receive queue they were for had no buffer
	// (dv.Device.OutOfBuffer, which has frames for other users of the port, too), or by the kernel
	// as a packet socket had none.
	RxOutOfBuffer uint64
	RxBackup      uint64 // dropped: by a port of a bond that is in reserve, see Member
	RxShed        uint64 // dropped: TCP without payload, while too much of that waited in the stack
	RxRefused     uint64 // dropped: SYNs to listeners after Refuse
	RxFiltered    uint64 // dropped: by Options.Filter
	RxWaiting     uint64 // bytes of that which wait now, estimated; see flood.go

	// While two processes have the addresses, see Steering: RxSteered was not for this one. Of
	// that, RxSentAway was given to the other one, or kept until it was known whose it is, and
	// RxSentAwayDropped found no room there.
	RxSteered, RxSentAway, RxSentAwayDropped uint64

	TxPackets uint64 // taken from the stack
	TxLSO     uint64 // packets left to the NIC to segment
	TxUSO     uint64 // of these, datagrams of one size
	TxWaits   uint64 // waits for room: of a datagram, or of a segment as the backlog was full
	TxDropped uint64 // refused because there still was no room
	TxResent  uint64 // TCP segments sent again by the link, or later than by netstack, see tcpfix
	TxSpared  uint64 // of netstack's, not sent again: the peer has them, or they are in TxResent
	TxGivenUp uint64 // connections ended by a timeout of the link's, netstack's does not run
	TxLeftOut uint64 // of netstack's, not sent: SYNs again at once, resets, see tcpfix/syn.go
	// TxNeedless counts segments sent again as an acknowledgement was late, by netstack or the
	// link, that the peer had: nothing was lost or out of order, see tcpfix/resend.go.
	TxNeedless uint64
	// TxDuplicatesTold counts the ranges of data come twice that ACKs have told of, see
	// tcpfix/duplicates.go.
	TxDuplicatesTold uint64
	TxErrors         uint64 // refused for another reason: too long, or the device is closed
	TxFiltered       uint64 // dropped by Options.Filter: packets taken, and datagrams refused

	// Segments that found no room, see backlog.go. They count as taken.
	TxBacklog        uint64 // waiting now
	TxBacklogMax     uint64 // the most that have waited for one queue
	TxBacklogged     uint64 // that had to wait
	TxBacklogDropped uint64 // of these, dropped when the endpoint was detached or closed

	// SpreadRefused says how often a device did not spread flows over another number of queues.
	SpreadRefused uint64

	// Switches says how often another backend came into use; see Endpoint.Switch. Each frame is in
	// the counters of one backend.
	Switches            uint64
	Rings, Packet, None BackendStats
}

// dropReason says why a received frame goes no further.
type dropReason uint8

const (
	dropBadChecksum dropReason = iota
	dropNoChecksum
	dropForged
	dropRefused
	dropOtherMAC
	dropOwn
	dropOtherVLAN
	dropShed
	dropBackup
	dropSteered
	dropFiltered
)

// dropReasons gives each reason its name in metrics, the sentence for captures, and its counter.
// Reasons of one name share a counter. Without a name a frame is not lost: the process that it is
// for has received it, or it is delivered later.
var dropReasons = [...]struct {
	name, sentence string
	counter        func(*Stats) *uint64
}{
	dropBadChecksum: {"bad_checksum", "a checksum is wrong",
		func(s *Stats) *uint64 { return &s.RxBadChecksum }},
	dropNoChecksum: {"bad_checksum", "it has no checksum, which IPv6 wants",
		func(s *Stats) *uint64 { return &s.RxBadChecksum }},
	dropForged: {"forged_icmp", "it is an ICMP message about a packet that was never sent",
		func(s *Stats) *uint64 { return &s.RxForged }},
	dropRefused: {"draining", "no connection begins any more: the server ends",
		func(s *Stats) *uint64 { return &s.RxRefused }},
	dropOtherMAC: {"other_mac", "it is for another Ethernet address",
		func(s *Stats) *uint64 { return &s.RxOtherMAC }},
	dropOwn: {"own", "it is our own broadcast come back",
		func(s *Stats) *uint64 { return &s.RxOwn }},
	dropOtherVLAN: {"other_vlan", "it is of another VLAN",
		func(s *Stats) *uint64 { return &s.RxOtherVLAN }},
	dropShed: {"shed", "too much waits for the stack already",
		func(s *Stats) *uint64 { return &s.RxShed }},
	dropBackup: {"backup_port", "it came by a port of a bond that is in reserve",
		func(s *Stats) *uint64 { return &s.RxBackup }},
	dropSteered: {"", "it is another process's, which has the same address",
		func(s *Stats) *uint64 { return &s.RxSteered }},
	dropFiltered: {"filtered", "the filter drops it",
		func(s *Stats) *uint64 { return &s.RxFiltered }},
}

// RxDrops yields the reasons for which the endpoint drops received frames, and how often it has.
func (s *Stats) RxDrops() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		before := ""
		for i := range dropReasons {
			r := &dropReasons[i]
			if r.name != "" && r.name != before && !yield(r.name, *r.counter(s)) {
				return
			}
			before = r.name
		}
	}
}

// BackendStats holds what went through backends of one kind.
type BackendStats struct {
	RxPackets uint64 // delivered to the stack
	TxFrames  uint64 // posted; of BackendNone, dropped
}

// rxCounters is one worker's; a cache line or more apart from the next.
type rxCounters struct {
	packets, merged, verified, fastPath, fragments atomic.Uint64
	zeroWindow, synRTTFixed, sackRemoved, pathMTU  atomic.Uint64
	echoAged, narrowWindow, handshakeData          atomic.Uint64
	supersededACKs                                 atomic.Uint64
	sentAway, sentAwayLost                         atomic.Uint64

	drops     [len(dropReasons)]atomic.Uint64
	byBackend [backendKinds]atomic.Uint64 // packets
	waiting   waiting
	_         [64]byte
}

type txCounters struct {
	packets, waits, dropped, errors        atomic.Uint64
	lso, uso                               atomic.Uint64
	filtered                               atomic.Uint64
	backlogged, backlogMax, backlogDropped atomic.Uint64
	frames                                 [backendKinds]atomic.Uint64
	_                                      [64]byte
}

// rxCounters returns the workers' counters, by number.
func (e *Endpoint) rxCounters() []*rxCounters {
	if all := e.rx.Load(); all != nil {
		return *all
	}
	return nil
}

// allRxCounters returns those of the workers and of the Injector.
func (e *Endpoint) allRxCounters() []*rxCounters {
	all := e.rxCounters()
	if c := e.injected.Load(); c != nil {
		return append(slices.Clone(all), c)
	}
	return all
}

// addCounters has counters for n workers at least. The former stay.
func (e *Endpoint) addCounters(n int) {
	all := slices.Clone(e.rxCounters())
	for len(all) < n {
		c := new(rxCounters)
		c.waiting.random, c.waiting.off = e.random, e.buffers.marks != nil
		all = append(all, c)
	}
	e.rx.Store(&all)
}

// outOfBuffer is of all backends. A backend that comes or goes at this moment may count twice or
// not at all.
func (e *Endpoint) outOfBuffer() uint64 {
	now := e.queues.Load()
	return e.pastOutOfBuffer.Load() + now.OutOfBuffer() - now.outOfBuffer
}

// Stats may be called at any time.
func (e *Endpoint) Stats() Stats {
	var s Stats
	backends := [backendKinds]*BackendStats{&s.Rings, &s.Packet, &s.None}
	for _, c := range e.allRxCounters() {
		s.RxPackets += c.packets.Load()
		s.RxMerged += c.merged.Load()
		s.RxSupersededACKs += c.supersededACKs.Load()
		s.RxVerified += c.verified.Load()
		s.RxZeroWindow += c.zeroWindow.Load()
		s.RxSYNRTTFixed += c.synRTTFixed.Load()
		s.RxSACKRemoved += c.sackRemoved.Load()
		s.RxPathMTU += c.pathMTU.Load()
		s.RxEchoAged += c.echoAged.Load()
		s.RxNarrowWindow += c.narrowWindow.Load()
		s.RxHandshakeData += c.handshakeData.Load()
		s.RxFastPath += c.fastPath.Load()
		s.RxFragments += c.fragments.Load()
		s.RxSentAway += c.sentAway.Load()
		s.RxSentAwayDropped += c.sentAwayLost.Load()
		for why := range dropReasons {
			*dropReasons[why].counter(&s) += c.drops[why].Load()
		}
		for k, of := range backends {
			of.RxPackets += c.byBackend[k].Load()
		}
	}
	s.RxOutOfBuffer, s.Switches = e.outOfBuffer(), e.switches.Load()
	s.SpreadRefused = e.spreadRefusals.Load()
	s.RxWaiting = e.collectWaiting()
	for _, t := range e.tx {
		c := &t.count
		s.TxPackets += c.packets.Load()
		s.TxLSO += c.lso.Load()
		s.TxUSO += c.uso.Load()
		s.TxWaits += c.waits.Load()
		s.TxDropped += c.dropped.Load()
		s.TxErrors += c.errors.Load()
		s.TxFiltered += c.filtered.Load()
		s.TxBacklog += uint64(t.backlog.waiting.Load())
		s.TxBacklogMax = max(s.TxBacklogMax, c.backlogMax.Load())
		s.TxBacklogged += c.backlogged.Load()
		s.TxBacklogDropped += c.backlogDropped.Load()
		for k, of := range backends {
			of.TxFrames += c.frames[k].Load()
		}
	}
	c := e.flows.Counts()
	s.TxResent, s.TxSpared, s.TxNeedless = c.Resent, c.Spared, c.Needless
	s.TxGivenUp, s.TxLeftOut = c.GivenUp, c.LeftOut
	s.RxACKsKept, s.RxACKsLate, s.TxDuplicatesTold = c.ACKsKept, c.ACKsLate, c.DuplicatesTold
	return s
}

// Resets are TCP connections that were sent a reset. One is counted once.
type Resets struct {
	Known int // the stack had them, and ended them
	// Unknown are those that the stack did not have, or no more although their peers had not ended
	// them, when something came for them.
	Unknown int
}

// maxResets bounds how many connections are told apart: what comes for a connection that the stack
// does not have may be a flood.
const maxResets = 1 << 16

// resets notes the connections that are reset.
type resets struct {
	on atomic.Bool

	mu    sync.Mutex             // guards what follows; the last lock that is taken
	seen  map[hdr.Tuple]struct{} // at most maxResets
	ended map[hdr.Tuple]struct{} // connections whose peer has sent its FIN; at most maxResets
	count Resets
}

// NoteResets begins to note the connections that are reset, once. It costs what is sent nothing but
// resets.
func (e *Endpoint) NoteResets() {
	e.resets.mu.Lock()
	defer e.resets.mu.Unlock()
	if e.resets.seen == nil {
		e.resets.seen, e.resets.ended = map[hdr.Tuple]struct{}{}, map[hdr.Tuple]struct{}{}
		e.resets.on.Store(true)
	}
}

// Resets returns what was reset since NoteResets. It may be called at any time.
func (e *Endpoint) Resets() Resets {
	e.resets.mu.Lock()
	defer e.resets.mu.Unlock()
	return e.resets.count
}

// received notes that the peer of a connection here has ended its direction: once ours is ended,
// too, nothing is cut by the RST that answers what comes then, such as a second ACK of a FIN that
// was sent twice. A SYN begins another connection.
func (r *resets) received(s *hdr.Segment, here bool) {
	flow, _ := s.Flow()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.Flags()&hdr.FlagSYN != 0:
		delete(r.ended, *flow)
	case here && len(r.ended) < maxResets:
		r.ended[*flow] = struct{}{}
	}
}

// sent notes a segment with RST. A refused SYN is no connection: its answer has sequence number 0
// (RFC 9293 section 3.10.7.1), and the answer to a segment of an unknown connection no ACK.
func (r *resets) sent(p *hdr.Segment) {
	if !r.on.Load() {
		return
	}
	seq, _ := hdr.Numbers(p.TCP())
	known := p.Flags()&hdr.FlagACK != 0
	if known && seq == 0 {
		return
	}
	flow, _ := p.Flow()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, again := r.seen[*flow]
	_, ended := r.ended[*flow]
	if again || ended && !known || len(r.seen) == maxResets {
		return
	}
	r.seen[*flow] = struct{}{}
	if known {
		r.count.Known++
	} else {
		r.count.Unknown++
	}
}
