package stack_test

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// told collects what HealthChanged is told.
type told struct {
	mu  sync.Mutex
	all []stack.Health
}

func (r *told) add(h stack.Health) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, h)
}

// await waits until a reporter was told to be in a state that often.
func (r *told) await(t *testing.T, reporter string,
	state stack.HealthState, errs, recovers uint64) {
	t.Helper()
	for deadline := time.Now().Add(hangs); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		for _, h := range r.all {
			if h.Reporter == reporter && h.State == state && h.Error == errs &&
				h.Recover == recovers {
				r.mu.Unlock()
				return
			}
		}
		all := r.all
		r.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("%s not told %s, %d errors, %d recovered: %+v",
				reporter, state, errs, recovers,
				all)
		}
	}
}

// TestHealth has the link, a send queue and the device fail and recover, and the device stay away
// for too long: each reporter tells it, once.
func TestHealth(t *testing.T) {
	var seen told
	j := join(t, cable{queues: 1, change: func(c *stack.Config) {
		c.Uplink.MaxOutage = 300 * time.Millisecond
		if seen.all == nil { // the server's, which is made first
			c.HealthChanged = seen.add
			seen.all = []stack.Health{{}}
		}
	}})
	s, c := pair(t, j.server, j.client)
	names := []string{}
	for _, h := range j.server.Health() {
		if h.State != stack.Healthy || h.Error+h.Recover != 0 || h.Reason != nil {
			t.Errorf("%+v", h)
		}
		names = append(names, h.Reporter)
	}
	if len(names) != 6 || names[0] != "tx" || names[4] != "stack" || names[5] != "memory" {
		t.Errorf("%q", names)
	}
	j.nic.SetLink(false)
	seen.await(t, "link", stack.InError, 1, 0)
	j.nic.SetLink(true)
	seen.await(t, "link", stack.Healthy, 1, 1)

	j.nic.Inject(simnic.QueueFault{Kind: simnic.FaultSendError, Count: 1, Syndrome: 4})
	go s.Write([]byte("x"))
	_, err := c.Read(make([]byte, 1))
	must(t, err)
	seen.await(t, "tx", stack.Healthy, 1, 1)
	if err := j.server.Unhealthy(); err != nil {
		t.Error(err)
	}

	j.nic.FailDevice()
	seen.await(t, "device", stack.InError, 1, 0)
	seen.await(t, "link", stack.InError, 2, 1)
	seen.await(t, "stack", stack.InError, 1, 0)
	if err := j.server.Unhealthy(); !errors.Is(err, syscall.ENETDOWN) {
		t.Errorf("%v", err)
	}
	if h := j.server.Health()[3]; h.State != stack.InError || !errors.Is(h.Reason, dv.ErrFailed) {
		t.Errorf("%+v", h)
	}
	awaitRefusal(t, j.server)
	j.nic.RestoreDevice()
	seen.await(t, "device", stack.Healthy, 1, 1)
	seen.await(t, "stack", stack.Healthy, 1, 1)
	seen.await(t, "link", stack.Healthy, 2, 2)
	if err := j.server.Unhealthy(); err != nil {
		t.Error(err)
	}
}

// awaitRefusal waits until a device was looked for in vain, before which it was closed.
func awaitRefusal(t *testing.T, s *stack.Stack) {
	t.Helper()
	for deadline := time.Now().Add(hangs); s.LinkStatus().Refused == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s.LinkStatus())
		}
		time.Sleep(time.Millisecond)
	}
}

// TestGracePeriod: a device that fails twice within the grace period stays away, and Recover brings
// it back.
func TestGracePeriod(t *testing.T) {
	j := join(t, cable{queues: 1,
		change: func(c *stack.Config) { c.Uplink.GracePeriod = time.Hour }})
	up := func(returns uint64) {
		t.Helper()
		for deadline := time.Now().Add(hangs); ; time.Sleep(time.Millisecond) {
			st := j.server.LinkStatus()
			if st.State == failover.Up && st.Returns == returns {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v", st)
			}
		}
	}
	j.nic.FailDevice()
	awaitRefusal(t, j.server)
	j.nic.RestoreDevice()
	up(1)
	j.nic.FailDevice()
	for deadline := time.Now().Add(hangs); !j.server.LinkStatus().Held; {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", j.server.LinkStatus())
		}
		time.Sleep(time.Millisecond)
	}
	if err := j.server.Unhealthy(); !errors.Is(err, dv.ErrFailed) {
		t.Errorf("%v", err)
	}
	refused := j.server.LinkStatus().Refused
	for j.server.LinkStatus().Refused == refused { // which it is until the old one is closed
		j.server.Recover()
		time.Sleep(time.Millisecond)
	}
	j.nic.RestoreDevice()
	j.server.Recover()
	up(2)
	if err := j.server.Unhealthy(); err != nil {
		t.Error(err)
	}
}
