package sim

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// ticker is the clock of a run, which also counts from the beginning.
type ticker struct {
	*clocktest.Clock
	began time.Time
}

func newTicker() *ticker {
	c := clocktest.New()
	return &ticker{c, c.Now()}
}

// now is the virtual time since the beginning.
func (t *ticker) now() time.Duration { return t.Now().Sub(t.began) }
