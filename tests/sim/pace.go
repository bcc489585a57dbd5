package sim

import (
	"fmt"
	"time"
)

// How long a transfer may take. Wire, losses and faults are known, and bound that: three times the
// round trips that slow start needs within the windows of both hosts, and what each frame lost and
// each fault may cost. What makes less than a third of what it could is not slow, it stands. Of
// 7,720 directions of 600 worlds without bounds none took more than a fifth of this where nothing
// was lost and no NIC had a fault.
const (
	// paceSlack tells by how much a transfer may be slower than it could be.
	paceSlack = 3
	// ackPause lasts longer than an acknowledgement is held, and a tail loss probe waits.
	ackPause = 50 * time.Millisecond
	// lossCost bounds what a frame lost or late may cost: a timeout, and a share of its doubling
	// where the same segment is lost again. The frames of all connections count, from when the
	// client began to dial: a SYN-ACK that comes in its second copy makes a round trip of a second,
	// and a first timeout of three or four (RFC 6298 section 2).
	lossCost = 2 * time.Second
	// faultCost bounds what a fault of a host may cost besides twice its time, for which the
	// timeouts double: frames that its NIC lost are not known to the switch.
	faultCost = 5 * time.Second
	// unannounced says how long a peer keeps the MAC that a host had for a moment, if the NIC of
	// the peer loses the host's announcements: RFC 4861 section 10, DELAY_FIRST_PROBE_TIME and
	// MAX_UNICAST_SOLICIT times RETRANS_TIMER.
	unannounced = 8 * time.Second
	// leastSegment stays below the maximum segment size of every MTU of a plan.
	leastSegment = 1200
	firstWindow  = 10 * leastSegment // RFC 6928
	// freeWindow gives the least in which each second segment is acknowledged at once; in a smaller
	// one each round trip may wait for an acknowledgement that is held. pausesOfFree says how often
	// one may be held in a larger: where a sender has a last segment to send.
	freeWindow   = 64 << 10
	pausesOfFree = 4
)

// pace holds when a direction of a connection began and ended, and how many frames of the network
// were lost or late before it ended.
type pace struct {
	began, over time.Duration
	harmEnd     uint64
	begun       bool
}

// begin notes that the first is about to be written.
func (p *pace) begin(w *world) {
	if !p.begun {
		*p = pace{began: w.clock.now(), begun: true}
	}
}

// end notes that the reader has come to the end.
func (p *pace) end(w *world) { p.over, p.harmEnd = w.clock.now(), w.net.losses() }

// checkPace says which direction of a connection took too long.
func (j *job) checkPace(s *session) error {
	switch j.plan.Kind {
	case Bulk, Short, HalfClose, Deadline, SlowReader:
	default:
		return nil
	}
	for i, f := range []*flow{s.there, s.back} {
		name := [...]string{"client to server", "server to client"}[i]
		if !f.pace.begun || !f.eof {
			continue
		}
		harm := f.pace.harmEnd - s.harmed
		sender := &j.w.plan.Hosts[[...]int{j.plan.Client, j.plan.Server}[i]]
		took, most := f.pace.over-f.pace.began, j.mostTime(f, harm)+j.rateTime(f, sender)
		if least := j.leastTime(f, sender); took < least {
			return fmt.Errorf("%s: %d bytes took %v, %v at least at the sender's rate", name,
				f.sent, took, least)
		}
		if took > most {
			return fmt.Errorf("%s: %d bytes took %v, %v at most: %d frames were lost or late "+
				"since the dial", name, f.sent, took, most, harm)
		}
	}
	return nil
}

// mostTime returns how long a direction may take, with harm frames lost or late since the dial.
func (j *job) mostTime(f *flow, harm uint64) time.Duration {
	net := &j.w.plan.Net
	window := j.window()
	trips := time.Duration(rounds(f.sent, window))
	most := paceSlack * trips * 2 * (net.Delay + net.Jitter + net.Quantum + j.passedOn())
	if window < freeWindow {
		most += trips * j.ackPause()
	} else {
		most += pausesOfFree * j.ackPause()
	}
	most += time.Duration(harm+j.w.outOfBuffer()) * lossCost
	if j.plan.Kind == SlowReader {
		most += 2*maxPauses*j.plan.Pause + time.Second // each end of a closed window may be a wait
	}
	for _, fault := range j.w.plan.Faults {
		at := j.w.began + fault.At
		over := at + fault.For + fault.settling() + faultCost
		if !fault.Off && at <= f.pace.over && over >= f.pace.began {
			most += 2*fault.For + fault.settling() + faultCost
			if fault.Kind == Readdressed && len(j.w.plan.Faults) > 1 {
				most += 2 * unannounced
			}
		}
	}
	return most
}

// leastTime returns how long a direction takes at least at its sender's rate. One quantum goes at
// once.
func (j *job) leastTime(f *flow, sender *HostPlan) time.Duration {
	if sender.Rate == 0 {
		return 0
	}
	const quantum = 200 * time.Microsecond
	segment := time.Duration(j.w.plan.largestMTU()) * time.Second / time.Duration(sender.Rate)
	return rateSpan(f.sent, sender.Rate) - max(quantum, segment)
}

// rateTime returns by how much longer a direction may take for its sender's rate. The sender looks
// at the windows in pauses of up to stallPause.
func (j *job) rateTime(f *flow, sender *HostPlan) time.Duration {
	if sender.Rate == 0 {
		return 0
	}
	const stallPause = 64 * time.Millisecond
	return paceSlack*rateSpan(f.sent, sender.Rate) +
		time.Duration(rounds(f.sent, j.window()))*stallPause
}

// rateSpan returns how long bytes take at a rate.
func rateSpan(bytes int, bytesPerSecond uint64) time.Duration {
	return time.Duration(bytes) * time.Second / time.Duration(bytesPerSecond)
}

// resentInVain reports a host with a rate that sent much again where nothing was lost, late or
// refused: its timers took waits for the rate for losses. Netstack sends some segments again in any
// case, as its tail loss probes do not know for how long peers hold acknowledgements: in 80 such
// worlds without rates 8 segments at most, with rates 12.
func (w *world) resentInVain() error {
	if w.plan.harmful() || w.plan.drops() || w.plan.resets() || w.net.losses() > 0 ||
		w.overflowed() {
		return nil
	}
	const most, share = 20, 20
	for i, h := range w.hosts {
		o, ours := h.(*ourHost)
		if !ours || o.plan.Rate == 0 {
			continue
		}
		sent, again := o.stack.Netstack().Stats().TCP.SegmentsSent.Value(),
			o.stack.Stats().TCPRetransmits
		if again > most+sent/share {
			return fmt.Errorf("host %d, at %d bytes per second, sent %d of %d segments again, "+
				"while nothing got lost", i, o.plan.Rate, again, sent)
		}
	}
	return nil
}

// passedOn returns how much longer a frame may take each way as processes take each other's places
// on an end of the job: one of them passes on the frames of the connections of another. That may
// be long after the fault, as where the process before waits for clients that an unplugged cable
// holds up.
func (j *job) passedOn() (most time.Duration) {
	for _, i := range []int{j.plan.Client, j.plan.Server} {
		h := &j.w.plan.Hosts[i]
		most = max(most, h.Late)
		if h.OnHost {
			most = max(most, h.Netdev.Lag+h.Netdev.Drain)
		}
	}
	return most
}

// ackPause returns how long an acknowledgement may be held, or a tail loss probe waits.
func (j *job) ackPause() time.Duration {
	pause := ackPause
	for _, h := range j.w.plan.Hosts {
		pause = max(pause, h.ACKDelay+ackPause)
	}
	return pause
}

// rounds returns how many round trips it takes to send so many bytes by slow start, within a
// window: two more for what comes before the first and for the end.
func rounds(bytes, window int) (n int) {
	for n = 2; bytes > 0; n++ {
		bytes -= min(firstWindow<<min(n-2, 20), window)
	}
	return n
}

// window returns how much the hosts of a job have in flight at most: half of the smallest buffer,
// as netstack announces half of it, and a write may be of less than a segment.
func (j *job) window() int {
	least := 1 << 20
	for _, i := range []int{j.plan.Client, j.plan.Server} {
		h := &j.w.plan.Hosts[i]
		for _, n := range []int{h.Buffers.Default, h.Memory.Send} {
			if n > 0 {
				least = min(least, n)
			}
		}
	}
	return least / 2
}

// outOfBuffer returns how many frames came to hosts of ours whose rings had no room for them.
func (w *world) outOfBuffer() (n uint64) {
	for _, h := range w.hosts {
		if o, ours := h.(interface{ outOfBuffer() uint64 }); ours {
			n += o.outOfBuffer()
		}
	}
	return n
}
