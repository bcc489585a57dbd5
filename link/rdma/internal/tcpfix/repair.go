package tcpfix

import (
	"encoding/binary"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Behaviour: netstack keeps one record of a super-segment, see gsoSACKFilter. Of several frames
// lost from the last one it notices none until its tail loss probe, after two round trips, or its
// timeout; those of earlier ones come again with all that SACK has reported between them. Its tail
// loss probe sends the first frame of what is left of the last super-segment, which says nothing
// about the frames behind it; RFC 8985 section 7.3 has the last one sent. With a round trip of
// 50 ms an answer of 14 kB takes 212 ms where the first frame is lost, 458 ms where the first,
// fourth and seventh are, and 686 ms where the last two are; Linux 102, 102 and 463 ms.
//
// Fix: the segments of paths with a round trip of keepFrom or more are kept until they are
// acknowledged, and of any path once SACK has told of a gap. What SACK shows to be lost while no
// other super-segment is reported, or with little in flight, is sent again from here, up to 0.7 of
// what was in flight (RFC 6675 section 5, RFC 9438 section 4.6). netstack then gets the report in
// four parts, so that it counts three duplicates and makes its window smaller, and what it sends
// again of the same data within a round trip is dropped. Beside a tail loss probe that is not the
// last frame of its super-segment the last one is sent.
//
// Upstream: docs/upstream/03-super-segments.md. No longer needed when the rows of TestAnswers in
// tests/conformance/roads pass without it.

const (
	// keepFrom is the least round trip from which on segments are kept before anything is lost: a
	// timeout costs little on shorter paths, looking at each segment more.
	keepFrom = 2 * time.Millisecond
	// maxRepaired bounds the flight of several super-segments that is repaired from here: netstack
	// repairs a larger one as fast. On a shorter path than keepFrom a frame that is only late may
	// have come by more than the round trip: tailFlight segments are the bound there.
	maxRepaired = 64 << 10
	// maxSpans bounds what is kept of SACK blocks, and of what was sent again.
	maxSpans = 64
	// mostSpared bounds how often netstack's resends of a segment are dropped: it gives up a
	// connection that has sent one 15 times, whether or not that has left the link. On paths
	// shorter than keepFrom, whose round trip is not known well, none are dropped.
	mostSpared = 3
	// reportParts is the number of duplicates that a report becomes: netstack counts three, and not
	// the first if its window is another than the last.
	reportParts = 4
)

// repair holds what is missing within the flight of one flow, and what was sent again of that.
type repair struct {
	sacked []span  // reported by SACK, in order
	sent   []again // in the order of that
	number int     // of what was sent again
	proved int     // the number of the last of these that has come
	on     bool    // until what had been sent when it began, up to end, is acknowledged
	end    uint32
	flight uint32 // bytes in flight when it began
	old    uint32 // what is missing before is late by more than the reordering window
	newest uint32 // the end of what was reported at markAt
	markAt tcpip.MonotonicTime
	due    bool
	report []byte     // the acknowledgement to deliver in parts; nil: none
	parsed hdr.Packet // of report
	spared []spared   // resends of netstack's that were dropped, of what is not acknowledged
	probe  bool       // the last frame of the last part is to be sent
	probed uint32     // the end of what was in flight at the last probe
}

// span describes a range of sequence numbers.
type span struct{ seq, end uint32 }

// again describes what was sent again: when, with which number, and the end of the flow then.
type again struct {
	span
	at     tcpip.MonotonicTime
	number int
	next   uint32
}

// spared says how many resends were dropped that begin at seq.
type spared struct {
	seq   uint32
	times int
}

// joinSpans adds a range to ranges in order, and joins those that meet.
func joinSpans(spans []span, seq, end uint32) []span {
	at := 0
	for at < len(spans) && hdr.Before(spans[at].end, seq) {
		at++
	}
	to := at
	for to < len(spans) && !hdr.Before(end, spans[to].seq) {
		if hdr.Before(spans[to].seq, seq) {
			seq = spans[to].seq
		}
		if hdr.Before(end, spans[to].end) {
			end = spans[to].end
		}
		to++
	}
	return slices.Replace(spans, at, to, span{seq, end})
}

// covered reports whether one of the ranges has all from seq to end.
func covered(spans []span, seq, end uint32) bool {
	return slices.ContainsFunc(spans, func(x span) bool {
		return !hdr.Before(seq, x.seq) && !hdr.Before(x.end, end)
	})
}

// noteReport takes note of what a segment reports, and says whether something is to be sent again
// from here. A segment without SACK may show that something sent again is lost.
func (f *resendFlow) noteReport(s *hdr.Segment, now tcpip.MonotonicTime) (begins bool) {
	p := &f.repair
	p.sacked = slices.DeleteFunc(p.sacked, func(x span) bool { return !hdr.Before(f.una, x.end) })
	p.spared = slices.DeleteFunc(p.spared, func(x spared) bool { return hdr.Before(x.seq, f.una) })
	if p.on && !hdr.Before(f.una, p.end) {
		p.on = false
	}
	if len(p.sacked) == 0 {
		p.sent = slices.DeleteFunc(p.sent, func(x again) bool { return !hdr.Before(f.una, x.end) })
	}
	sack := s.Options().SACK
	if !f.told || len(sack) < 10 || f.back.on || s.Payload > 0 {
		return false
	}
	_, ack := hdr.Numbers(s.TCP())
	blocks, twice := sack[2:], startsBelow(s, sack)
	if twice { // the first is of what has come twice (RFC 2883)
		blocks = blocks[8:]
	}
	for b := blocks; len(b) >= 8; b = b[8:] {
		from, to := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if !hdr.Before(ack, from) || !hdr.Before(from, to) || hdr.Before(f.end, to) {
			return false // of data not known here
		}
		if hdr.Before(f.una, from) && len(p.sacked) < maxSpans {
			p.sacked = joinSpans(p.sacked, from, to)
		}
	}
	if len(p.sacked) == 0 {
		return false
	}
	f.markGaps(now)
	f.noteArrivals(now)
	if !p.on {
		if twice || f.netstackNotices() && f.end-f.una > f.mostRepaired() || !f.isLost(f.una) ||
			!f.keptFrom(f.una) {
			return false
		}
		p.on, p.end, p.flight, begins = true, f.end, f.end-f.una, true
		p.report, p.parsed = slices.Clone(s.Frame), s.Packet
	}
	p.due = p.due || f.nextHole(now) != nil
	return begins
}

// noteArrivals forgets what was sent again and has come, and what is lost again: something sent
// later has come (RFC 8985 section 6.2).
func (f *resendFlow) noteArrivals(now tcpip.MonotonicTime) {
	p := &f.repair
	newest := p.sacked[len(p.sacked)-1].end
	p.sent = slices.DeleteFunc(p.sent, func(x again) bool {
		come := !hdr.Before(f.una, x.end) || covered(p.sacked, x.seq, x.end)
		if come {
			p.proved = max(p.proved, x.number)
		}
		return come
	})
	p.sent = slices.DeleteFunc(p.sent, func(x again) bool {
		return now.Sub(x.at) >= f.rtt+f.reordering() &&
			(x.number < p.proved || hdr.Before(x.next, newest))
	})
}

// mostRepaired returns up to which flight of several super-segments is repaired from here.
func (f *resendFlow) mostRepaired() uint32 {
	if f.rtt < keepFrom {
		return tailFlight * f.mss
	}
	return maxRepaired
}

// markGaps takes note of which gaps are older than the reordering window. The first one is: it
// would not be reported else.
func (f *resendFlow) markGaps(now tcpip.MonotonicTime) {
	p := &f.repair
	switch last := p.sacked[len(p.sacked)-1].end; {
	case !p.on:
		p.old, p.newest, p.markAt = p.sacked[0].seq, last, now
	case now.Sub(p.markAt) >= f.reordering():
		p.old, p.newest, p.markAt = p.newest, last, now
	}
}

// reordering returns how much later than others a frame may come.
func (f *resendFlow) reordering() time.Duration { return max(f.rtt/4, time.Millisecond) }

// isLost reports whether what is missing at seq is lost: three segments behind it have come, or it
// is late by more than the reordering window (RFC 8985 section 6.2).
func (f *resendFlow) isLost(seq uint32) bool {
	if hdr.Before(seq, f.repair.old) {
		return true
	}
	above := uint32(0)
	for _, x := range f.repair.sacked {
		if hdr.Before(seq, x.seq) {
			above += x.end - x.seq
		}
	}
	return above > 2*f.mss
}

// netstackNotices reports whether netstack's loss detection learns something of what is reported:
// the beginning of a record.
func (f *resendFlow) netstackNotices() bool {
	return slices.ContainsFunc(f.parts, func(p resendPart) bool {
		return hdr.Before(f.una, p.seq) && covered(f.repair.sacked, p.seq, p.seq+1)
	})
}

// keptFrom reports whether there is a packet with what comes at seq.
func (f *resendFlow) keptFrom(seq uint32) bool {
	return len(f.parts) > 0 && !hdr.Before(seq, f.parts[0].seq)
}

// nextHole returns the next frame to be sent again: lost, not on its way again, and within the
// window. nil: there is none.
func (f *resendFlow) nextHole(now tcpip.MonotonicTime) *span {
	p := &f.repair
	if !p.on || len(p.sacked) == 0 {
		return nil
	}
	missing, first := uint32(0), (*span)(nil)
	at := f.una
	for _, x := range p.sacked {
		for hdr.Before(at, x.seq) {
			end := x.seq
			if part := f.partAt(at); part != nil {
				if next := at + f.mss - (at-part.seq)%f.mss; hdr.Before(next, end) {
					end = next
				}
				if hdr.Before(part.end, end) {
					end = part.end
				}
				if !f.sentAgain(at, end) && f.isLost(at) {
					missing += end - at
					if first == nil {
						first = &span{at, end}
					}
				}
			}
			at = end
		}
		at = x.end
	}
	if first == nil {
		return nil
	}
	inFlight := f.end - f.una - missing
	for _, x := range p.sacked {
		inFlight -= x.end - x.seq
	}
	if len(p.sent) > 0 && inFlight+f.mss > p.flight/10*7 {
		return nil
	}
	return first
}

// noteAgain takes note of what is sent again, from here or by netstack.
func (f *resendFlow) noteAgain(x span, now tcpip.MonotonicTime) {
	p := &f.repair
	if len(p.sent) == maxSpans {
		p.sent = slices.Delete(p.sent, 0, 1)
	}
	p.number++
	p.sent = append(p.sent, again{x, now, p.number, f.end})
}

// sentTwice reports whether netstack sends the same again for the same acknowledgement, as what its
// fast retransmit sends, and as what follows behind a timeout (transport/tcp/snd.go sendData).
func (f *resendFlow) sentTwice(seq, end uint32, now tcpip.MonotonicTime) bool {
	if f.own || len(f.repair.sent) == 0 {
		return false
	}
	x := &f.repair.sent[len(f.repair.sent)-1]
	return x.seq == seq && x.end == end && !x.at.Before(f.ackAt) && now.Sub(x.at) < answerGap &&
		f.repair.spare(seq)
}

// sentAgain reports whether all from seq to end has been sent again and is not lost again.
func (f *resendFlow) sentAgain(seq, end uint32) bool {
	return slices.ContainsFunc(f.repair.sent, func(x again) bool {
		return !hdr.Before(seq, x.seq) && !hdr.Before(x.end, end)
	})
}

// partAt returns the packet with what is at seq; nil: it is not kept.
func (f *resendFlow) partAt(seq uint32) *resendPart {
	for i := range f.parts {
		if p := &f.parts[i]; !hdr.Before(seq, p.seq) && hdr.Before(seq, p.end) {
			return p
		}
	}
	return nil
}

// sendHole makes a packet of the next frame to be sent again, or of one to be sent beside a probe;
// nil: there is none.
func (f *resendFlow) sendHole(now tcpip.MonotonicTime) *gstack.PacketBuffer {
	f.fitPackets()
	p := &f.repair
	x := f.nextHole(now)
	if x == nil && p.probe && len(f.parts) > 0 {
		p.probe = false
		last := &f.parts[len(f.parts)-1]
		size := last.end - last.seq
		x = &span{last.seq + (size-1)/f.mss*f.mss, last.end}
	}
	if x == nil {
		return nil
	}
	part := f.partAt(x.seq)
	if part == nil || part.pkt.Data().Size() == 0 {
		return nil
	}
	f.noteAgain(*x, now)
	round := f.round
	pkt := f.segment(part, int(x.seq-part.seq), now)
	f.round = round
	return pkt
}

// superfluous reports whether what netstack sends again has come, or has just been sent from here.
func (f *resendFlow) superfluous(seq, end uint32, now tcpip.MonotonicTime) bool {
	p := &f.repair
	if !p.on || f.own || hdr.Before(seq, f.una) || f.rtt < keepFrom {
		return false
	}
	drop := covered(p.sacked, seq, end) ||
		slices.ContainsFunc(p.sent, func(x again) bool {
			return !hdr.Before(seq, x.seq) && !hdr.Before(x.end, end) &&
				now.Sub(x.at) < f.rtt+f.reordering()
		})
	return drop && p.spare(seq)
}

// spare reports whether a resend that begins at seq may be dropped, and counts it if so.
func (p *repair) spare(seq uint32) bool {
	at := slices.IndexFunc(p.spared, func(x spared) bool { return x.seq == seq })
	switch {
	case at >= 0 && p.spared[at].times < mostSpared:
		p.spared[at].times++
		return true
	case at >= 0 || len(p.spared) == maxSpans:
		return false
	}
	p.spared = append(p.spared, spared{seq, 1})
	return true
}

// noteProbe takes note of a tail loss probe: netstack sends the beginning of the last part again
// though nothing is reported to be lost.
func (f *resendFlow) noteProbe(seq, end uint32, now tcpip.MonotonicTime) bool {
	p, n := &f.repair, len(f.parts)
	if n == 0 || f.own || p.on || p.probed == f.end || len(p.sacked) > 0 ||
		now.Sub(f.ackAt) < answerGap || now.Sub(f.dataAt) < answerGap {
		return false
	}
	last := &f.parts[n-1]
	if hdr.Before(seq, last.seq) || last.pkt.Data().Size() == 0 || !hdr.Before(end, last.end) {
		return false
	}
	p.probe, p.due, p.probed = true, true, f.end
	return true
}

// takeReport returns the frames that tell netstack of the loss.
func (p *repair) takeReport() (frames [][]byte) {
	if p.report == nil {
		return nil
	}
	whole := p.report
	p.report = nil
	l := &p.parsed
	for i := 1; i < reportParts; i++ {
		part := slices.Clone(whole)
		sack := hdr.OptionsOf(part[l.L4:]).SACK
		from, to := binary.BigEndian.Uint32(sack[2:]), binary.BigEndian.Uint32(sack[6:])
		binary.BigEndian.PutUint32(sack[6:], from+max((to-from)/reportParts, 1)*uint32(i))
		sack[1] = 10
		for j := range sack[10:] {
			sack[10+j] = hdr.OptNop
		}
		l.Seal(part)
		frames = append(frames, part)
	}
	return append(frames, whole)
}

// sendRepair sends what is missing of a flow, and tells netstack of the loss.
func (r *resender) sendRepair(shard *resendShard, d resendDue) {
	for range maxSpans {
		sent := false
		if !r.post(d.like, func() *gstack.PacketBuffer {
			shard.mu.Lock()
			defer shard.mu.Unlock()
			pkt := d.flow.sendHole(r.clock.NowMonotonic())
			sent = pkt != nil
			return pkt
		}) {
			return
		}
		if !sent {
			break
		}
		r.count.Add(1)
	}
	shard.mu.Lock()
	frames, again := d.flow.repair.takeReport(), d.flow.reordering()
	shard.mu.Unlock()
	r.soon(again)
	for _, frame := range frames {
		r.told.Add(1)
		r.deliver(frame)
	}
}

// repairDue reports whether something is to be sent again from here now.
func (f *resendFlow) repairDue(now tcpip.MonotonicTime) bool {
	p := &f.repair
	if p.on && len(p.sacked) > 0 {
		f.markGaps(now)
		p.due = p.due || f.nextHole(now) != nil
	}
	due := p.due || p.report != nil
	p.due = false
	return due
}
