package stack_test

import (
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// virtualTime is a clock for a test's stacks. It goes on by itself whenever no goroutine can run,
// so that nothing is waited for, until stop is called or the test has ended.
type virtualTime struct {
	*clocktest.Clock
	stop func()
}

// newVirtualTime is to be called before the test makes its stacks.
func newVirtualTime(t testing.TB) virtualTime {
	c := clocktest.New()
	v := virtualTime{c, c.Run()}
	t.Cleanup(v.stop)
	return v
}

// option has a stack go by the clock.
func (v virtualTime) option(cfg *stack.Config) { cfg.Clock = v.Clock.Clock() }

// sleep lets d pass.
func (v virtualTime) sleep(t testing.TB, d time.Duration) {
	t.Helper()
	must(t, v.Clock.Clock().Sleep(t.Context(), d))
}
