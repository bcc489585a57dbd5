package rdma

import "fmt"

// Spread is over how many of a device's receive queues flows are spread.
type Spread uint8

// The ways.
const (
	// SpreadLoad is as many as the load needs, and no more than half of the processors
	// (GOMAXPROCS), but one at least. With RxPolling it is all: those workers never sleep.
	SpreadLoad Spread = iota
	// SpreadAll is all there are.
	SpreadAll
)

var spreads = [...]string{SpreadLoad: "load", SpreadAll: "all"}

// String implements fmt.Stringer.
func (s Spread) String() string {
	if int(s) < len(spreads) {
		return spreads[s]
	}
	return fmt.Sprintf("Spread(%d)", uint8(s))
}

// Validate says in one sentence what is wrong with s, or nil.
func (s Spread) Validate() error {
	if int(s) >= len(spreads) {
		return fmt.Errorf("there is no %s; use SpreadLoad or SpreadAll", s)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (s Spread) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: load, all.
func (s *Spread) UnmarshalText(text []byte) error {
	for i, name := range spreads {
		if name == string(text) {
			*s = Spread(i)
			return nil
		}
	}
	return fmt.Errorf("want load or all")
}

// spreads says whether the number of queues with flows follows the load. On a clock that is not the
// system's it does not: what happens there must not depend on the machine's processors.
func (o Options) spreads() bool {
	return o.Spread == SpreadLoad && o.RxMode != RxPolling && !o.Clock.Virtual()
}

// ActiveRxQueues is dv.Config.ActiveRxQueues for a device of so many receive queues that is opened
// for an endpoint with these options: 0 is all of them.
func (o Options) ActiveRxQueues(queues int) int {
	if queues < 2 || !o.spreads() {
		return 0
	}
	return 1
}
