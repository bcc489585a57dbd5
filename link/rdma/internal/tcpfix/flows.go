package tcpfix

import (
	"encoding/binary"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Flows holds what one endpoint keeps of TCP connections.
type Flows struct {
	key        random.HashKey // of hdr.Segment.Flow
	zeroWindow zeroWindow
	synRTT     synRTTFix
	synEcho    synEchoFix
	synBurst   synBurstFix
	synWindow  synWindowFix
	timeWait   timeWaitFix
	handshake  handshakeData
	gsoSACK    gsoSACKFilter
	resend     resender
	narrow     narrowWindow
	reorder    reorderWindow
	duplicates duplicates
	leftOut    atomic.Uint64 // dropped for synBurst and timeWait
}

// New makes flows that send by post, on the time of clock, with hashes by a key from r. Frames that
// Received has kept are given to deliver later, from goroutines of their own, to be received anew.
func New(clock tcpip.Clock, r random.Source, post Poster, deliver func(frame []byte)) *Flows {
	f := &Flows{key: r.HashKey(), synRTT: newSYNRTTFix(clock), synEcho: newSYNEchoFix()}
	f.synBurst, f.synWindow = newSYNBurstFix(clock), newSYNWindowFix(clock)
	f.handshake = newHandshakeData(clock)
	f.resend.open(clock, post)
	f.narrow.open()
	f.reorder.open(clock, f.resend.end, deliver)
	f.duplicates.open(clock)
	f.resend.deliver, f.resend.path = deliver, f.reorder.path
	f.resend.sackOK = f.narrow.sackPermitted
	f.handshake.took, f.synRTT.took = f.reorder.noteHandshake, f.reorder.noteHandshake
	return f
}

// LimitPackets cuts what is sent again from here into IP packets of at most so many bytes as
// longest returns, now or later. It is called before anything is sent.
func (f *Flows) LimitPackets(longest func(tcpip.NetworkProtocolNumber) int) {
	f.resend.longest = longest
}

// Key returns that of the segments given to Sent.
func (f *Flows) Key() random.HashKey { return f.key }

// Sent takes note of an outgoing packet, whose headers s are, and changes the timestamp echo of a
// SYN-ACK, and the window of an ACK in a handshake, where that is needed, their checksums too. It
// reports whether the packet is not to be sent at all. grown, unless nil, is to be sent in its
// place, and the caller's to release. It is called with the lock of the packet's send queue held,
// so that the segments of a flow come in the order of the wire.
func (f *Flows) Sent(pkt *gstack.PacketBuffer, s *hdr.Segment) (grown *gstack.PacketBuffer,
	drop bool) {
	if !s.IsTCP() {
		return nil, false
	}
	if f.synBurst.sent(s) || f.timeWait.sent(s) {
		f.leftOut.Add(1)
		return nil, true
	}
	f.zeroWindow.sent(s)
	f.synRTT.sent(s)
	f.synEcho.sent(s)
	f.synWindow.sent(s)
	f.handshake.sent(s)
	gaps := f.reorder.sent(pkt, s)
	if f.resend.sent(pkt, s, gaps) {
		return nil, true
	}
	grown = f.duplicates.sent(pkt, s)
	gso := &pkt.GSOOptions
	if gso.Type != gstack.GSONone && s.Payload >= int(gso.MSS) {
		f.gsoSACK.sent(s)
	}
	return grown, false
}

// Changes says what Received has changed in a packet, or that it is to be dropped.
type Changes uint16

// The bits of Changes.
const (
	ZeroWindow     Changes = 1 << iota // the sequence number: netstack had announced window 0
	SYNRTT                             // the timestamp echo: it answers a SYN sent several times
	SACKRemoved                        // the SACK option is taken out
	PathMTU                            // the MTU in a message that a packet was too big
	EchoAged                           // the timestamp echo: it answers what was lost with the link
	NarrowWindow                       // the window: it was less than what has been sent
	Forged                             // nothing: it is a message about what was never sent
	HandshakeData                      // nothing: it ends a handshake; an ACK of it is to go first
	HandshakeStamp                     // nothing: likewise, and that ACK needs a timestamp
	Held                               // nothing: it is kept, or said already; drop it

	repairBegun // nothing: what is missing is sent from here
)

// Received changes a received frame where that is needed. p has been parsed from it, and its
// checksums are verified, but for that of ICMP. The TCP checksum is not made good again.
func (f *Flows) Received(frame []byte, p *hdr.Packet) (c Changes) {
	if !p.IsTCP() {
		if p.Proto != hdr.ProtoICMP && p.Proto != hdr.ProtoICMPv6 {
			return 0
		}
		return f.receivedICMP(frame, p)
	}
	if !f.concerned(frame[p.L4:p.End]) {
		return 0
	}
	s := hdr.Received(frame, p, f.key)
	if f.zeroWindow.received(&s) {
		c |= ZeroWindow
	}
	f.synEcho.received(&s)
	f.synWindow.received(&s)
	f.duplicates.received(&s)
	c |= f.handshake.received(&s)
	if f.synRTT.received(&s) {
		c |= SYNRTT
	}
	if f.narrow.received(&s, &f.resend) {
		c |= NarrowWindow
	}
	if c |= f.reorder.received(&s); c&Held != 0 {
		f.resend.noteNeedless(&s)
		return c
	}
	c |= f.resend.received(&s)
	if c&repairBegun != 0 {
		c &^= repairBegun
		f.gsoSACK.passSACK(&s)
		return c
	}
	if f.gsoSACK.received(&s) {
		c |= SACKRemoved
	}
	if c&SACKRemoved != 0 {
		f.reorder.noteRemoved(&s)
	}
	return c
}

// Arrives takes note of a TCP segment with payload bytes of data that the stack is about to get. p
// has been parsed from frame, which may be the first of several that are delivered as one; flags
// has those of all.
func (f *Flows) Arrives(frame []byte, p *hdr.Packet, payload int, flags byte) {
	size := uint32(payload) + uint32(flags&hdr.FlagFIN)
	if size == 0 || flags&(hdr.FlagSYN|hdr.FlagRST) != 0 {
		return
	}
	seq, _ := hdr.Numbers(frame[p.L4:])
	f.duplicates.arrives(p.ReceivedFlow(frame, f.key), seq, seq+size)
}

// Answers reports whether a pure ACK of a flow, by the hash of hdr.Segment.Flow, is to be sent at
// once: it will tell of data that has come twice.
func (f *Flows) Answers(hash uint64) bool { return f.duplicates.answers(hash) }

// EndTimeWait calls abort, which ends the connection in TIME-WAIT of a SYN, s, without a reset.
func (f *Flows) EndTimeWait(s *hdr.Segment, abort func()) { f.timeWait.end(s, abort) }

// HandshakeEnd returns what the ACK that ends a connection's handshake has, once: its sequence
// number, and the timestamp of the SYN. p, parsed from frame, is the segment of [HandshakeData] or
// [HandshakeStamp].
func (f *Flows) HandshakeEnd(frame []byte, p *hdr.Packet) (seq, stamp uint32) {
	s := hdr.Received(frame, p, f.key)
	return f.handshake.takeEnd(&s)
}

// concerned reports whether any of the fixes may have use for a received segment.
func (f *Flows) concerned(tcp []byte) bool {
	return tcp[12]>>4 >= sackWords && !hdr.StampOnly(tcp) || tcp[13]&hdr.FlagSYN != 0 ||
		f.zeroWindow.count.Load() != 0 || f.synRTT.repeated.Load() != 0 ||
		f.resend.number.Load() != 0 || f.reorder.number.Load() != 0 ||
		f.handshake.waiting.Load() != 0 ||
		uint32(binary.BigEndian.Uint16(tcp[14:])) < f.narrow.limit.Load()
}

// LeavesData reports whether Received changes nothing, at present, in a segment with data and no
// option but a timestamp that goes on where another has ended.
func (f *Flows) LeavesData() bool { return f.synRTT.repeated.Load() == 0 }

// DataEnd returns the sequence number behind all data and the FIN that a flow has sent, by the hash
// of hdr.Segment.Flow. It is not known before the first data, and of a flow that shares its place
// in the table with a later one.
func (f *Flows) DataEnd(hash uint64) (end uint32, known bool) { return f.resend.end(hash) }

// Repeat sends the first unacknowledged segment of every flow that waits for an acknowledgement
// since netstack has repeated something: the link works again. Each flow then waits anew.
func (f *Flows) Repeat() { f.resend.repeat() }

// Counts says how often Sent and Received, or what they have kept, have done something.
type Counts struct {
	Resent  uint64 // segments sent again from here
	Spared  uint64 // of netstack's resends, dropped: they had come, or are among those of Resent
	LeftOut uint64 // SYNs and resets of netstack's, dropped
	GivenUp uint64 // connections ended, as their peer was silent
	// Needless counts segments sent again, from here or by netstack, as an acknowledgement was late
	// and though no SACK had told of a gap, that the peer says it had (RFC 2883).
	Needless       uint64
	DuplicatesTold uint64 // ranges of data come twice that acknowledgements have told of
	// ACKsKept counts acknowledgements that Received has kept, ACKsLate those that were delivered
	// later, among them copies of some that had been delivered.
	ACKsKept, ACKsLate uint64
}

// Counts returns the counts since New. Any goroutine may call it.
func (f *Flows) Counts() Counts {
	r := &f.resend
	return Counts{Resent: r.count.Load(), Spared: r.spared.Load(), Needless: r.idle.Load(),
		LeftOut: f.leftOut.Load(), GivenUp: r.silent.Load(),
		DuplicatesTold: f.duplicates.count.Load(),
		ACKsKept:       f.reorder.held.Load(), ACKsLate: f.reorder.late.Load() + r.told.Load()}
}

// Forget lets go of all packets: the endpoint has been detached.
func (f *Flows) Forget() {
	f.resend.clear()
	f.reorder.clear()
}

// Close is Forget for good: no packet is kept any more, and none is sent once post has returned.
// It may be called again.
func (f *Flows) Close() {
	f.resend.close()
	f.reorder.close()
}
