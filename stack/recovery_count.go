package stack

import (
	"reflect"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// recoveryCount corrects what netstack counts as in flight while a connection recovers from a loss.
// It owns the connection's packets, as which the link tells it of each segment that netstack sends
// again, with the connection's lock held. That lock guards it.
//
// What RACK has found lost goes on counting as in flight unless SACK tells of data behind it
// (transport/tcp/snd.go SetPipe). Where a whole flight is lost that is more than the window:
// one segment is sent again, and nothing else until the timeout, after which the marks are still
// there and begin the same again. The window is made larger by what counts for nothing: as much is
// sent again as the peer has acknowledged meanwhile, up to half of what was lost or the threshold
// (slow start of RFC 5681, RFC 6937).
//
// What is lost and was sent again netstack counts up to RFC 6675's HighRxt, and where RACK has
// begun a recovery that stays where it began (rack.go DoRecovery). Each acknowledgement makes room
// for as much anew: all that is lost leaves at once, into the queue that has just lost it, and new
// data behind it. For connections that write more than their window HighRxt is raised.
//
// Upstream: docs/upstream/05-go-back.md and 40-resend-echo.md. No longer needed when
// TestGoBackOfNetstack fails, and TestFilledQueue of tests/conformance/roads passes without it.
type recoveryCount struct {
	ep     *tcp.Endpoint
	fields *tcpFields
	next   *seqnum.Value // SND.NXT; nil: not looked for yet

	last, una seqnum.Value // FastRecovery.Last of the recovery, and SND.UNA as it began
	lost      int32        // segments lost as it began, and not sent again
	inFlight  int32        // segments in flight as it began
	skip      int32        // so many segments sent again are not looked at
	end       seqnum.Value // SND.NXT at the last timeout

	follows    bool // a recovery
	raised     bool // its window is larger than netstack has made it
	timedOut   bool // a timeout took all before end for lost
	countsSent bool // HighRxt is raised
}

// newRecoveryCount makes the count of a connection's recoveries right.
func newRecoveryCount(e tcpip.Endpoint, fields *tcpFields) *recoveryCount {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return nil
	}
	c := &recoveryCount{ep: ep, fields: fields}
	ep.LockUser()
	defer ep.UnlockUser()
	ep.SetOwner(c)
	return c
}

// countSent makes what a recovery sends again count as in flight from now on.
func (c *recoveryCount) countSent() {
	if c != nil {
		c.ep.LockUser()
		defer c.ep.UnlockUser()
		c.countsSent = true
	}
}

// KUID and KGID implement tcpip.PacketOwner. Nothing asks for them.
func (*recoveryCount) KUID() uint32 { return 0 }
func (*recoveryCount) KGID() uint32 { return 0 }

// SentBefore returns SND.NXT, which netstack moves once it has sent a segment. False: there is no
// such field.
func (c *recoveryCount) SentBefore() (end uint32, known bool) {
	if c.next == nil {
		at := c.fields.sndNxt.in(c.fields.snd.target(reflect.ValueOf(c.ep).Elem()))
		if !at.IsValid() {
			return 0, false
		}
		if c.next, known = writable(at).Addr().Interface().(*seqnum.Value); !known {
			return 0, false
		}
	}
	return uint32(*c.next), true
}

const (
	// firstResends gives the segments that are sent again before the peer acknowledges any.
	firstResends = 5
	// looksShare bounds the cost: a look at n segments is followed by n divided by so many segments
	// sent again without one.
	looksShare = 8
)

// CountResend notes that data up to end is sent again. A recovery that begins starts anew.
func (c *recoveryCount) CountResend(end uint32) {
	f, v := c.fields, reflect.ValueOf(c.ep).Elem()
	snd := f.snd.target(v)
	recovery := f.recovery.in(snd)
	if at := f.highRxt.in(recovery); c.countsSent && at.IsValid() {
		highest, ok := writable(at).Addr().Interface().(*seqnum.Value)
		if last := seqnum.Value(end) - 1; ok && highest.LessThan(last) {
			*highest = last
		}
	}
	if f.state.int(snd) == int(tcpip.RTORecovery) {
		c.timedOut, c.end = true, seqnum.Value(f.sndNxt.int(snd))
	}
	switch {
	case !f.active.bool(recovery):
		c.follows = false
	case f.sack.bool(v):
		c.makeRoom(snd, recovery)
	}
}

// makeRoom gives a recovery the window that lets it send what is lost.
func (c *recoveryCount) makeRoom(snd, recovery reflect.Value) {
	f := c.fields
	last, una := seqnum.Value(f.last.int(recovery)), seqnum.Value(f.sndUna.int(snd))
	begins := !c.follows || c.last != last
	if c.skip > 0 && !begins {
		c.skip--
		return
	}
	next := seqnum.Value(f.sndNxt.int(snd))
	if c.timedOut && (c.end.LessThanEq(una) || next.LessThan(c.end)) { // numbers wrap, after 2 GiB
		c.timedOut = false
	}
	n, ok := c.countFlight(snd, recovery)
	window := f.cwnd.in(snd)
	if !ok || !window.IsValid() {
		return
	}
	if begins {
		c.follows, c.last, c.una, c.raised = true, last, una, false
		c.lost, c.inFlight = int32(n.lost), int32(n.inFlight)
	}
	c.skip = int32(n.segments / looksShare)
	if c.raised = c.raised || n.excess > 0; !c.raised {
		return
	}
	acked := int(c.una.Size(una)) / n.size
	room := min(max(f.ssthresh.int(snd)+3, int(c.lost)/2), firstResends+int(c.inFlight)+acked)
	writable(window).SetInt(int64(room + n.excess))
}

// flightCount counts the segments between SND.UNA and SND.NXT.
type flightCount struct {
	size     int // of a segment, in bytes
	segments int
	lost     int // found lost, and not sent again
	inFlight int
	excess   int // counted as in flight by netstack, and not
}

// countFlight counts the segments of a connection that recovers as SetPipe does, and what is in
// flight. It reports whether the fields are there. The connection's lock is held.
func (c *recoveryCount) countFlight(snd, recovery reflect.Value) (n flightCount, ok bool) {
	f := c.fields
	at, board := f.firstSegment.in(f.segments.in(f.writeList.in(snd))), f.boardOf(c.ep)
	if !at.IsValid() || board == nil || board.SMSS() == 0 || f.nextSegment.index == nil {
		return n, false
	}
	n.size = int(board.SMSS())
	highest := seqnum.Value(f.highRxt.int(recovery))
	for ; !at.IsNil(); at = f.nextSegment.in(at.Elem()) {
		seg := at.Elem()
		times := f.sentTimes.int(seg)
		pkt, isPacket := writable(f.packet.in(seg)).Interface().(*gstack.PacketBuffer)
		if times == 0 || !isPacket || pkt.Data().Size() == 0 {
			break
		}
		start := seqnum.Value(f.seq.int(seg))
		n.add(board, sentSegment{
			SACKBlock: header.SACKBlock{Start: start,
				End: start.Add(seqnum.Size(pkt.Data().Size()))},
			lost:    f.lost.bool(seg) || times == 1 && c.timedOut && start.LessThan(c.end),
			again:   times > 1,
			counted: start.LessThanEq(highest)})
	}
	return n, true
}

// sentSegment describes a segment of netstack's: whether it was lost, was sent again, and counts as
// sent again.
type sentSegment struct {
	header.SACKBlock
	lost, again, counted bool
}

// add counts the segments of the wire that one of netstack's becomes.
func (n *flightCount) add(board *tcp.SACKScoreboard, s sentSegment) {
	for b := s.SACKBlock; b.Start.LessThan(s.End); b.Start = b.End {
		if b.End = b.Start.Add(seqnum.Size(n.size)); s.End.LessThan(b.End) {
			b.End = s.End
		}
		n.segments++
		if board.IsSACKED(b) {
			continue
		}
		behind := board.IsRangeLost(b) // and counts only if it was sent again
		inFlight := !s.lost && (s.again || !behind)
		switch {
		case inFlight:
			n.inFlight++
		case s.lost:
			n.lost++
		}
		if !behind && !inFlight {
			n.excess++
		}
		if !behind && s.counted {
			n.excess++
		}
	}
}

// boardOf returns what a connection knows by SACK; nil: there is no such field.
func (f *tcpFields) boardOf(ep *tcp.Endpoint) *tcp.SACKScoreboard {
	at := f.scoreboard.in(reflect.ValueOf(ep).Elem())
	if !at.IsValid() {
		return nil
	}
	board, _ := writable(at).Interface().(*tcp.SACKScoreboard)
	return board
}
