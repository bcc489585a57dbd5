//go:build linux

package vm

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Failures that the device and the kernel cause while the driver runs.

// testRecovery makes sends and receives fail: the queues enter the error state in the kernel as
// well, are reset through it, and continue.
func testRecovery(t *testing.T, w *world) {
	s := w.slice(t)
	w.datagrams(t, slice4.Addr())
	for _, syndrome := range []uint8{0x04, 0x02} { // local protection, local QP operation
		w.strike(t, func(struck func(netdev bool) bool) *simnic.Hooks {
			return &simnic.Hooks{SendWQE: func(sq *simnic.SQ, _ uint16) (uint8, uint8) {
				return when(struck(sq.Attr().Netdev), syndrome), 0
			}}
		})
	}
	for _, syndrome := range []uint8{0x04, 0x01} { // local protection, local length
		w.strike(t, func(struck func(netdev bool) bool) *simnic.Hooks {
			return &simnic.Hooks{Deliver: func(rq *simnic.RQ) (bool, uint8, uint8) {
				return false, when(struck(rq.Netdev()), syndrome), 0
			}}
		})
	}
	r := s.stop(t)
	var rx, tx uint64
	for _, q := range r.Stats.Rx {
		rx += q.Resets
	}
	for _, q := range r.Stats.Tx {
		tx += q.Resets
	}
	if tx != 2 || rx < 1 || !strings.Contains(r.Err, "closed") {
		t.Errorf("%d resets of send queues, %d of receive queues, ended with %q", tx, rx, r.Err)
	}
	w.forgive() // commands may be refused: the driver does not know the state of such a queue
}

func when(yes bool, syndrome uint8) uint8 {
	if yes {
		return syndrome
	}
	return 0
}

// strike makes the next event at the slice's queues fail, once, and waits until everything works
// again. faults makes the hooks, which ask whether to fail.
func (w *world) strike(t *testing.T, faults func(struck func(netdev bool) bool) *simnic.Hooks) {
	t.Helper()
	var done atomic.Bool
	w.nic.SetHooks(faults(func(netdev bool) bool {
		return !netdev &&
			done.CompareAndSwap(false, true)
	}))
	defer w.nic.SetHooks(nil)
	eventually(t, func() string { return "the fault striking" }, func() bool {
		w.datagram(slice4.Addr(), 100*time.Millisecond) // lost, if it is the one that fails
		return done.Load()
	})
	var err error
	eventually(t, func() string {
		return fmt.Sprintf("an echo of every flow after the fault: %v",
			err)
	}, func() bool {
		err = w.tryDatagrams(slice4.Addr(), time.Second)
		return err == nil
	})
}

// forgive accepts what the model has complained of so far.
func (w *world) forgive() {
	w.complaints, w.refusals = len(w.nic.Violations()), w.refused()
}

// testLink takes the carrier away and restores it: the guest's kernel sees it, and so does the
// slice.
func testLink(t *testing.T, w *world) {
	s := w.slice(t)
	carrier := func(want string) {
		t.Helper()
		eventually(t, func() string { return "carrier " + want }, func() bool {
			return strings.TrimSpace(w.must(t,
				rig.Request{Op: "read", Path: "/sys/class/net/eth0/carrier"}).Output) == want
		})
	}
	carrier("1")
	w.nic.SetLink(false)
	carrier("0")
	contains(t, w.run(t, "ip", "link", "show", "eth0"), "NO-CARRIER")
	contains(t, w.run(t, "ibv_devinfo"), "state: PORT_DOWN (1)")
	w.nic.SetLink(true)
	carrier("1")
	contains(t, w.run(t, "ibv_devinfo"), "state: PORT_ACTIVE (4)")
	w.datagrams(t, slice4.Addr())
	var r rig.SliceReport
	eventually(t, func() string {
		return fmt.Sprintf("the slice knowing of both changes: %+v",
			r.Stats)
	}, func() bool {
		r = s.now(t)
		return r.Stats.LinkUp && r.Stats.LinkChanges >= 2
	})
	s.stop(t)
}

// testRemoved removes the RDMA driver under a running slice, which ends and reports why, and under
// a running server, which goes on over packet sockets on the netdev that is left, and returns to
// rings.
func testRemoved(t *testing.T, w *world) {
	s := w.slice(t)
	stop := w.flooding(t)
	w.must(t, rig.Request{Op: "unload", Argv: []string{"mlx5_ib"}, Timeout: patience})
	checkGone(t, s.ended(t))
	stop()
	w.must(t, rig.Request{Op: "load"})
	w.appeared(t)
	server := w.serve(t, "http", "--debug-endpoints")
	w.must(t, rig.Request{Op: "unload", Argv: []string{"mlx5_ib"}, Timeout: patience})
	w.forgiveDoorbells(t)
	w.pingsOutside(t, outside4.Addr())
	download := func() {
		t.Helper()
		if err := w.client.Download(w.ctx, url(slice4, 80), bulk/8); err != nil {
			t.Errorf("%v; the server says: %s", err, w.output(t, server.job))
		}
	}
	before := w.nic.Counters().Slice.TxBytes
	download()
	if n := w.nic.Counters().Slice.TxBytes - before; n != 0 {
		t.Errorf("%d bytes left from rings that there are none of", n)
	}
	w.must(t, rig.Request{Op: "load"})
	w.appeared(t)
	eventually(t, func() string { return "the server sending from rings again" }, func() bool {
		download()
		return w.nic.Counters().Slice.TxBytes > before+bulk/8
	})
	server.stop(t)
	w.works(t)
}

// ended waits until the slice ends by itself and returns what it reports.
func (s *bareSlice) ended(t *testing.T) rig.SliceReport {
	t.Helper()
	r, err := s.w.vm.Do(rig.Request{Op: "wait", Job: s.job, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Fatalf("the slice ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
	return report(t, r.Output)
}

// checkGone checks that a slice whose device was removed reports it, and that every call returns
// the error.
func checkGone(t *testing.T, r rig.SliceReport) {
	t.Helper()
	for what, said := range map[string]string{"Err": r.Err, "Post": r.Posted, "Wait": r.Waited} {
		if !strings.HasPrefix(said, "device failed: ") || !strings.Contains(said, "was removed") {
			t.Errorf("%s says %q", what, said)
		}
	}
}
