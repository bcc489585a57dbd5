package pacing

import "time"

// Datagrams keeps those who send datagrams to one rate. A datagram goes whole, and the next waits
// the longer; what is shorter goes without a timer of its own, as long as that is less than Fine
// ahead of the rate. So in any time no more goes than the rate sends in it, and in Fine, and one
// datagram; for a timer that comes late, what the rate would have sent meanwhile besides, of 10 ms
// at most. The zero value has no limit. It is not safe for concurrent use.
//
//	   Admit: one datagram more may leave
//	  ┌──────────────────────────────────┐
//	  ▼                                  │       Admit: Fine ahead
//	open ────────────────────────────────┴───────────────────────────▶ waiting
//	  ▲   Admit: the rate has caught up, or Rest: nobody waits            │
//	  └───────────────────────────────────────────────────────────────────┘
type Datagrams struct {
	schedule Schedule
	waits    bool
}

// SetRate keeps to bytesPerSecond from now on; 0 is no limit. As many bytes as the rate before was
// ahead of wait for the new one: who sets a rate often sends no more by that.
func (d *Datagrams) SetRate(bytesPerSecond uint64, now time.Duration) {
	s := &d.schedule
	bps := 8 * min(bytesPerSecond, mostRate)
	if bps == s.bps {
		return
	}
	ahead := float64(max(0, s.due-now)) * float64(s.bps) / float64(max(1, bps))
	*s = NewSchedule(bps, 0)
	s.due = now + time.Duration(min(ahead, longestAhead))
}

// longestAhead bounds times that are computed, and leaves room for those that are added: 146 years.
const longestAhead = 1 << 62

// Admit returns for how long no datagram may leave from now on; 0 or less: one may, of which Sent
// is to be told.
func (d *Datagrams) Admit(now time.Duration) (wait time.Duration) {
	if d.waits {
		d.schedule.Resume(now)
	} else {
		d.schedule.Begin(now)
	}
	wait = d.schedule.Wait(now)
	if !d.waits && wait < Fine {
		return 0
	}
	d.waits = wait > 0
	return wait
}

// Rest says that nobody waits any more, though nothing was sent.
func (d *Datagrams) Rest() { d.waits = false }

// Sent counts a datagram, or several that left at once, of n bytes with their headers.
func (d *Datagrams) Sent(n int) { d.schedule.Sent(n) }
