package tcp

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// virtual is the time of a row, counted from its beginning.
type virtual struct {
	*clocktest.Clock
	began time.Time
}

func newVirtual() *virtual {
	c := clocktest.New()
	return &virtual{c, c.Now()}
}

func (v *virtual) now() time.Duration { return v.Now().Sub(v.began) }

// next is when the next timer is due; false: none is set.
func (v *virtual) next() (time.Duration, bool) {
	at, ok := v.Next()
	return at.Sub(v.began), ok
}

// set moves the time on to one before which no timer is due.
func (v *virtual) set(to time.Duration) { v.Advance(to - v.now()) }
