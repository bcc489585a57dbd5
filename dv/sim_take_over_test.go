package dv_test

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// priorities are those of a device's rules, and how many of each there are.
func priorities(d *dv.Device) (n [9]int) {
	for _, r := range d.Rules() {
		n[r.Priority]++
	}
	return n
}

// A device takes a MAC over again and again, each time from the one before: all frames come to one
// device, and to the one before when the newcomer ends too soon.
func TestTakeOver(t *testing.T) {
	for name, cfg := range map[string]dv.Config{"MAC": {}, "MAC in a VLAN": {NIC: dv.NIC{VLAN: 7}},
		"promiscuous": {NIC: dv.NIC{Steering: dv.Steering{Promiscuous: true}}}} {
		t.Run(name, func(t *testing.T) {
			cfg.RxQueues = 2
			s, before := usual(t, cfg)
			cfg.TakesOver = true
			for i := range 3 {
				if i == 1 {
					ok(t, before.Rebalance([]int{1, 1}))
				}
				gone := s.open(t, cfg)
				checkFlows(t, s, before, 10*i)
				ok(t, gone.TakeOver())
				checkFlows(t, s, gone, 10*i+1)
				ok(t, gone.Close())
				checkFlows(t, s, before, 10*i+2)

				next := s.open(t, cfg)
				ok(t, next.Settle()) // nothing to do yet
				ok(t, next.TakeOver())
				ok(t, next.TakeOver())
				checkFlows(t, s, next, 10*i+3)
				if got := priorities(next); got != [9]int{4, 2, 1, 8: 3} {
					t.Errorf("rules by priority, ahead of the others: %d", got)
				}
				if err := s.open(t, cfg).TakeOver(); !errors.Is(err, unix.EADDRINUSE) {
					t.Errorf("a third device: %v", err)
				}
				if err := next.Settle(); !errors.Is(err, unix.EADDRINUSE) {
					t.Errorf("the device before is there: %v", err)
				}
				if err := next.Rebalance([]int{1, 1}); !errors.Is(err, dv.ErrConfig) {
					t.Errorf("Rebalance: %v", err)
				}
				checkFlows(t, s, next, 10*i+4)
				ok(t, before.Close())
				checkFlows(t, s, next, 10*i+5)
				ok(t, next.Settle())
				ok(t, next.Settle())
				if got := priorities(next); got != [9]int{3: 4, 2, 0, 0, 1, 3} {
					t.Errorf("rules by priority, in their places: %d", got)
				}
				checkFlows(t, s, next, 10*i+6)
				before = next
			}
			ok(t, before.Close())
			if err := before.TakeOver(); !errors.Is(err, dv.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			if err := before.Settle(); !errors.Is(err, dv.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		})
	}
}

// Frames that arrive while devices take over from one another come once.
func TestTakeOverLosesNothing(t *testing.T) {
	cfg := dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 4096, TxQueueSize: 64}}}
	s, before := usual(t, cfg)
	cfg.TakesOver = true
	var sent, taken atomic.Int32 // frames that are through the NIC, and those that were polled
	stop, ended := make(chan struct{}), make(chan struct{})
	var pause sync.Mutex // rings are not looked at while a device is opened
	go func() {
		defer close(ended)
		kinds := []string{"TCP over IPv4", "UDP over IPv6", "ICMP", "TCP over IPv6"}
		f := flows(7)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// else the ring overruns while nobody looks
			if int32(i)-taken.Load() > int32(cfg.Rings.RxQueueSize/2) {
				runtime.Gosched()
				i--
				continue
			}
			pause.Lock()
			k := f[kinds[i%len(kinds)]]
			b := packet(k.Src, k.Dst, k.Proto, 40)
			binary.BigEndian.PutUint32(b[len(b)-4:], uint32(i))
			if n, err := s.wire.wire.Send(oneFrame(b)); n != 1 {
				t.Errorf("frame %d: %v", i, err)
			}
			sent.Store(int32(i + 1))
			pause.Unlock()
		}
	}()
	seen := map[uint32]bool{}
	take := func(d *dv.Device) {
		for _, p := range poll(d.Rx(0)) {
			i := binary.BigEndian.Uint32(p.Data[len(p.Data)-4:])
			if seen[i] {
				t.Errorf("frame %d came twice", i)
			}
			seen[i] = true
			taken.Store(int32(len(seen)))
		}
	}
	more := func(devices ...*dv.Device) { // frames that were under way are through
		next := sent.Load() + 20
		eventually(t, "more frames", func() bool {
			done := sent.Load() >= next
			for _, d := range devices {
				take(d)
			}
			return done
		})
	}
	for range 20 {
		pause.Lock()
		next := s.open(t, cfg)
		pause.Unlock()
		more(before, next)
		ok(t, next.TakeOver())
		more(before, next)
		pause.Lock()
		ok(t, before.Close())
		pause.Unlock()
		more(next)
		ok(t, next.Settle())
		more(next)
		before = next
	}
	close(stop)
	<-ended
	take(before)
	if c := s.nic.Counters(); len(seen) != int(sent.Load()) || c.Drops.SteerMissed != 0 {
		t.Errorf("%d of %d frames came, drops %+v", len(seen), sent.Load(), c.Drops)
	}
}
