package stack_test

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// TestDumps: when a send queue fails, and when the device does, their rings are kept for the
// reporter, and others can be dumped as they are now.
func TestDumps(t *testing.T) {
	var seen told
	j := join(t, cable{queues: 2, change: func(c *stack.Config) { c.HealthChanged = seen.add }})
	s, c := pair(t, j.server, j.client)
	kept := func(reporter string, want int) []dv.Dump {
		t.Helper()
		all, err := j.server.KeptDumps(reporter)
		if err != nil || len(all) != want {
			t.Fatalf("%d dumps of %s, %v, want %d", len(all), reporter, err, want)
		}
		return all
	}
	for _, name := range []string{"tx", "rx", "link", "device", "stack"} {
		kept(name, 0)
	}
	if _, err := j.server.KeptDumps("x"); !errors.Is(err, stack.ErrNoReporter) {
		t.Errorf("of x: %v", err)
	}
	for name, want := range map[string]int{"tx": 2, "rx": 2, "device": 4} {
		all, err := j.server.Dump(t.Context(), name)
		if err != nil || len(all) != want {
			t.Errorf("%d dumps of %s, %v, want %d", len(all), name, err, want)
		}
	}
	if _, err := j.server.Dump(t.Context(), "link"); !errors.Is(err, stack.ErrNoDump) {
		t.Errorf("of link: %v", err)
	}

	j.nic.Inject(simnic.QueueFault{Kind: simnic.FaultSendError, Count: 1, Syndrome: 4})
	go s.Write([]byte("x"))
	_, err := c.Read(make([]byte, 1))
	must(t, err)
	tx := kept("tx", 1)[0]
	if last := j.server.Health()[0].LastDump; !last.Equal(tx.Time) || last.IsZero() {
		t.Errorf("last dump at %v, kept that of %v", last, tx.Time)
	}
	cqes := tx.CQEs()
	if n := len(cqes); n == 0 || cqes[n-1].Syndrome != "local protection error" {
		t.Errorf("completions %+v", cqes)
	}

	j.nic.FailDevice()
	awaitRefusal(t, j.server)
	for _, d := range kept("device", 4) {
		if !errors.Is(d.Err, dv.ErrFailed) {
			t.Errorf("%s: %v", d.Queue, d.Err)
		}
	}
	if _, err := j.server.Dump(t.Context(), "rx"); !errors.Is(err, stack.ErrNoDump) {
		t.Errorf("while the device is away: %v", err)
	}
}

// TestRecoverReporter: only what is in error, and does not recover by itself, can be recovered.
func TestRecoverReporter(t *testing.T) {
	j := join(t, cable{queues: 1})
	refused := func(reporter string, want error) {
		t.Helper()
		if err := j.server.RecoverReporter(reporter); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", reporter, err, want)
		}
	}
	refused("nothing", stack.ErrNoReporter)
	for _, name := range []string{"tx", "rx", "link", "device", "stack"} {
		refused(name, stack.ErrNoRecovery)
	}
	j.nic.FailDevice()
	awaitRefusal(t, j.server)
	for _, name := range []string{"link", "device"} {
		refused(name, nil)
	}
	eventually(t, "a look for the device", func() bool {
		return j.server.FailoverStats().Recovers > 0
	})
	if st := j.server.FailoverStats(); st.Failed != 1 || st.Refused == 0 {
		t.Errorf("%+v", st)
	}
	must(t, j.server.Close())
	refused("device", stack.ErrNoRecovery)
}
