//go:build !linux

package clocktest

import "time"

// callLimit says how long Settle waits for system calls, of the system's time: what takes longer
// waits for something.
const callLimit = 20 * time.Millisecond

// callWatch tells system calls that wait from those that work.
type callWatch struct{ since time.Time }

// allAsleep reports whether a system call has been there for callLimit.
func (c *callWatch) allAsleep() bool {
	if c.since.IsZero() {
		c.since = time.Now()
	}
	return time.Since(c.since) > callLimit
}
