package failover

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// happened fails the test unless this happened since it was asked last.
func (w *world) happened(want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.take(); !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
		w.t.Errorf("%q, want %q", got, want)
	}
}

// is fails the test unless the link is in this state, on this backend.
func (w *world) is(state State, backend rdma.BackendKind) {
	w.t.Helper()
	synctest.Wait()
	if s := w.link.Status(); s.State != state || s.Backend != backend {
		w.t.Errorf("%v on %v, want %v on %v", s.State, s.Backend, state, backend)
	}
}

// shut closes the link, twice.
func (w *world) shut() {
	w.t.Helper()
	for range 2 {
		if err := w.link.Close(); err != nil {
			w.t.Error(err)
		}
	}
	for _, d := range append(w.devices, w.ports...) {
		if d.closed != 1 {
			w.t.Errorf("%s closed %d times", d.name, d.closed)
		}
	}
}

// TestLossAndReturn loses the device by each trigger: the port takes over at once, and the device
// comes back after the first pause.
func TestLossAndReturn(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"failed":        func(w *world) { w.devices[0].fail(errGone) },
		"remove@":       func(w *world) { w.signals <- Signal{Gone: true, Name: "mlx5_0"} },
		"netdev leaves": func(w *world) { w.signals <- Signal{Gone: true, Ifindex: 11} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, Config{}, true)
				w.is(Up, rdma.BackendRings)
				w.signals <- Signal{Gone: true, Name: "mlx5_9"} // another's
				w.signals <- Signal{Gone: true, Ifindex: 99}
				w.signals <- Signal{Moved: true, Ifindex: 11} // the rings are not the netdev's
				w.happened()
				lose(w)
				w.happened("unmute", "switch to packet", "close mlx5_0")
				w.is(Fallback, rdma.BackendPacket)
				time.Sleep(firstPause)
				w.happened("open", "switch to rings", "mute")
				w.is(Up, rdma.BackendRings)
				if s := w.link.Status(); s.Losses != 1 || s.Returns != 1 || s.Reason != nil ||
					s.Moves != 1 {
					t.Errorf("%+v", s)
				}
				w.shut()
			})
		})
	}
}

// TestRerouted: when netdevs change while the port carries frames, that is told a moment later, and
// not more often than reroutePause. Otherwise, and for RDMA devices, it is not.
func TestRerouted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		w.set(func() { w.refuse = errGone })
		rerouted := func(want int) {
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.rerouted != want {
				t.Errorf("told %d times, want %d", w.rerouted, want)
			}
		}
		w.signals <- Signal{Ifindex: 11} // the device carries frames
		time.Sleep(time.Second)
		rerouted(0)
		w.devices[0].fail(errGone)
		w.signals <- Signal{Gone: true, Name: "mlx5_0"}
		time.Sleep(time.Second)
		rerouted(0)
		for range 3 {
			w.signals <- Signal{Ifindex: 11} // its carrier goes, and it leaves
			w.signals <- Signal{Gone: true, Ifindex: 11}
		}
		rerouted(0)
		time.Sleep(signalPause)
		rerouted(1)
		w.signals <- Signal{Ifindex: 12} // the next comes
		time.Sleep(reroutePause - time.Millisecond)
		rerouted(1)
		time.Sleep(time.Millisecond)
		rerouted(2)
		w.signals <- Signal{Ifindex: 12}
		w.ports[0].fail(errGone) // nothing carries frames then
		w.set(func() { w.noPort = errGone })
		time.Sleep(time.Second)
		rerouted(2)
		w.shut()
	})
}

// TestAccounts: losses are counted by who told them, and the time away and that on nothing is
// added up.
func TestAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute
		w := start(t, Config{MaxOutage: limit, Grace: time.Hour}, true)
		account := func(want Status) {
			t.Helper()
			synctest.Wait()
			s := w.link.Status()
			got := Status{Losses: s.Losses, Failed: s.Failed, Removed: s.Removed, Away: s.Away,
				Dark: s.Dark, Holds: s.Holds, Recovers: s.Recovers, Expirations: s.Expirations}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		account(Status{})
		w.set(func() { w.refuse = errGone })
		w.signals <- Signal{Gone: true, Name: "mlx5_0"}
		time.Sleep(3 * time.Second)
		account(Status{Losses: 1, Removed: 1, Away: 3 * time.Second})
		w.set(func() { w.noPort = errGone })
		w.ports[0].fail(errGone)
		time.Sleep(2 * limit)
		want := Status{Losses: 1, Removed: 1, Away: 2*limit + 3*time.Second, Dark: 2 * limit,
			Expirations: 1}
		account(want)
		w.set(func() { w.refuse = nil })
		w.link.Recover()
		time.Sleep(signalPause)
		w.is(Up, rdma.BackendRings)
		time.Sleep(time.Second)
		want.Recovers, want.Away, want.Dark = 1, want.Away+signalPause, want.Dark+signalPause
		account(want)
		w.devices[1].fail(errGone)
		time.Sleep(time.Second)
		want.Losses, want.Failed, want.Holds = 2, 1, 1
		want.Away, want.Dark = want.Away+time.Second, want.Dark+time.Second
		account(want)
		w.shut()
	})
}

// TestGroupsComeLast: while the kernel removes a netdev nobody can tell it about groups. The port
// is at work, and that was told, and the lost device is closed, without waiting for it.
func TestGroupsComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		rtnl := make(chan struct{})
		w.set(func() { w.rtnl = rtnl })
		w.devices[0].fail(errGone)
		w.happened("unmute", "switch to packet", "close mlx5_0")
		w.is(Fallback, rdma.BackendPacket)
		time.Sleep(time.Minute)
		w.happened()
		w.set(func() { w.rtnl = nil })
		close(rtnl)
		w.happened("open", "switch to rings", "mute")
		w.shut()
	})
}

// TestNoPort: without a port frames are dropped until the device is back.
func TestNoPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, false)
		w.devices[0].fail(errGone)
		w.happened("switch to none", "close mlx5_0")
		if w.link.LinkUp() || w.link.AtWork() != nil {
			t.Error("up on nothing")
		}
		time.Sleep(firstPause)
		w.happened("open", "switch to rings")
		w.shut()
	})
}

// TestPauses: the device is looked for after 250 ms, then after pauses of an eighth of the time
// that it has been away, 250 ms to 1 s for two minutes, so that an outage that connections survive
// is over 1 s after its end, then up to 5 s; and at once when the kernel tells of one. The reason
// is kept.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		w.set(func() { w.refuse = errGone })
		begin := time.Now()
		w.devices[0].fail(errors.New("died"))
		at, n := firstPause, 0
		for at < 15*time.Minute {
			time.Sleep(time.Until(begin.Add(at - 1)))
			synctest.Wait()
			if w.attempts() != n {
				t.Errorf("%d attempts before %v, want %d", w.attempts(), at, n)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			n++
			if s := w.link.Status(); w.attempts() != n || !errors.Is(s.Reason, errGone) ||
				s.State != Fallback || s.Refused != uint64(n) {
				t.Errorf("%d attempts after %v, want %d, %+v", w.attempts(), at, n, s)
			}
			pause := min(at/8, time.Second)
			if at > 2*time.Minute {
				pause = min(at/120, longestPause)
			}
			at += max(pause, firstPause)
		}
		for range 10 {
			w.signals <- Signal{Ifindex: 3}
		}
		time.Sleep(signalPause)
		synctest.Wait()
		if w.attempts() != n+1 {
			t.Errorf("%d attempts after ten signals", w.attempts()-n)
		}
		w.set(func() { w.refuse = nil })
		w.signals <- Signal{}
		time.Sleep(signalPause)
		w.is(Up, rdma.BackendRings)
		w.shut()
	})
}

// TestUnfit: a device that connections cannot go on with is closed, and the port stays at work.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		w.set(func() { w.unfit = errors.New("smaller MTU") })
		w.devices[0].fail(errGone)
		time.Sleep(firstPause)
		w.happened("unmute", "switch to packet", "close mlx5_0", "open", "close mlx5_1")
		w.is(Fallback, rdma.BackendPacket)
		w.set(func() { w.unfit = nil })
		time.Sleep(2 * firstPause)
		w.happened("open", "switch to rings", "mute")
		w.shut()
	})
}

// TestPortEnds: a port that ends at work leaves nothing, and is opened again; one that ends muted
// is, too, once the kernel tells of a netdev.
func TestPortEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		w.ports[0].fail(errGone)
		w.happened("close eth0")
		w.is(Up, rdma.BackendRings)
		w.signals <- Signal{Ifindex: 5}
		time.Sleep(signalPause)
		synctest.Wait()
		w.set(func() { w.refuse = errGone })
		w.devices[0].fail(errGone)
		w.happened("unmute", "switch to packet", "close mlx5_0")
		w.set(func() { w.noPort = errGone })
		w.ports[1].fail(errGone)
		w.happened("switch to none", "close eth0")
		time.Sleep(time.Second)
		w.is(Fallback, rdma.BackendNone)
		w.set(func() { w.noPort = nil })
		time.Sleep(2 * time.Second)
		w.happened("unmute", "switch to packet")
		w.is(Fallback, rdma.BackendPacket)
		w.shut()
		if s := w.link.Status(); s.PortLosses != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestMaxOutage: the limit is told once, MaxOutage after nothing was left, and not while the port
// works.
func TestMaxOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Minute
		w := start(t, Config{MaxOutage: limit}, true)
		w.set(func() { w.refuse = errGone })
		w.devices[0].fail(errGone)
		time.Sleep(10 * limit)
		synctest.Wait()
		if w.expirations() != 0 {
			t.Fatal("expired with a port at work")
		}
		w.set(func() { w.noPort = errGone })
		w.ports[0].fail(errGone)
		time.Sleep(limit - 1)
		synctest.Wait()
		if w.expirations() != 0 {
			t.Fatal("expired early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if w.expirations() != 1 || !w.link.Status().Expired {
			t.Fatalf("told %d times", w.expirations())
		}
		w.set(func() { w.refuse = nil })
		time.Sleep(longestPause)
		w.is(Up, rdma.BackendRings)
		if w.expirations() != 1 || w.link.Status().Expired {
			t.Errorf("told %d times, %+v", w.expirations(), w.link.Status())
		}
		w.shut()
	})
}

// TestFlapping: a device that fails as soon as it is back is looked for less and less often.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		var away time.Duration
		for n := range 100 {
			w.devices[n].fail(errGone)
			began := time.Now()
			for w.link.Status().State != Up || w.link.Status().Returns <= uint64(n) {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			if away = time.Since(began); n == 0 && away > 2*firstPause {
				t.Errorf("away for %v", away)
			}
		}
		if away < longestPause {
			t.Errorf("at last looked for after %v", away)
		}
		w.shut()
	})
}

// TestLinkChanges: what is at work tells changes of its link.
func TestLinkChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		told := func(d *fakeDevice) bool {
			d.changed <- struct{}{}
			synctest.Wait()
			select {
			case <-w.link.LinkChanged():
				return true
			default:
				return false
			}
		}
		w.devices[0].up = false
		if !told(w.devices[0]) || w.link.LinkUp() {
			t.Error("the device's change was not told")
		}
		if told(w.ports[0]) {
			t.Error("the muted port's change was told")
		}
		<-w.ports[0].changed
		w.set(func() { w.refuse = errGone })
		w.devices[0].fail(errGone)
		synctest.Wait()
		if !told(w.ports[0]) || !w.link.LinkUp() {
			t.Error("the port's change was not told")
		}
		w.shut()
	})
}

// TestCloseWhileOpening: what is opened too late is closed.
func TestCloseWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, true)
		w.gate = make(chan struct{})
		w.devices[0].fail(errGone)
		time.Sleep(firstPause)
		go w.link.Close()
		synctest.Wait()
		close(w.gate)
		w.shut()
		if !errors.Is(w.link.Err(), ErrClosed) {
			t.Errorf("%v", w.link.Err())
		}
	})
}

// TestGrace: a device that fails again within the grace period is left alone until Recover; one
// that worked for longer is not.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Minute
		w := start(t, Config{Grace: grace}, true)
		w.devices[0].fail(errGone) // it has not come back yet
		time.Sleep(firstPause)
		w.is(Up, rdma.BackendRings)
		time.Sleep(grace)
		w.devices[1].fail(errGone)
		time.Sleep(firstPause)
		w.is(Up, rdma.BackendRings)
		time.Sleep(grace - 1)
		w.devices[2].fail(errGone)
		time.Sleep(time.Hour)
		w.signals <- Signal{}
		time.Sleep(time.Second)
		w.is(Fallback, rdma.BackendPacket)
		if s := w.link.Status(); !s.Held || !errors.Is(s.Reason, errGone) {
			t.Errorf("%+v", s)
		}
		for range 2 {
			w.link.Recover()
			time.Sleep(signalPause)
			w.is(Up, rdma.BackendRings)
		}
		if s := w.link.Status(); s.Held || s.Returns != 3 {
			t.Errorf("%+v", s)
		}
		w.shut()
	})
}
