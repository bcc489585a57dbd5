package stack

import (
	"math/rand/v2"
	"time"
)

// schedule is how long the answer to a message is waited for, given how long the one before was.
type schedule func(last time.Duration) time.Duration

// doubling waits first, then twice as long each time up to most.
func doubling(first, most time.Duration) schedule {
	return func(last time.Duration) time.Duration { return min(max(2*last, first), most) }
}

// halving waits half of the time that is left until the deadline, but least (RFC 2131 section
// 4.4.5).
func halving(deadline time.Time, least time.Duration) schedule {
	return func(time.Duration) time.Duration { return max(time.Until(deadline)/2, least) }
}

// jitter makes d up to a tenth longer, so that hosts that began together do not go on together.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/10+1) }
