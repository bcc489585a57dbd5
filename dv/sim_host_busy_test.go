package dv_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// TestRebalanceByPort moves rules between tables while frames come: each comes once, and the count
// of a rule goes on.
func TestRebalanceByPort(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{NIC: dv.NIC{
		RxQueues: 2,
		Rings:    dv.Rings{RxQueueSize: 4096, TxQueueSize: 64},
	}})
	other := s.openHost(t, dv.Config{})
	r := listener(udp, hostV4, 53)
	addRule(t, d, r)
	addRule(t, d, block(tcp, hostV6, dv.FirstBlock))
	const total = 2000
	var sent atomic.Int32
	go func() {
		f := toHost(udp, hostV4, 53)
		for range total {
			if n, err := s.wire.wire.Send(oneFrame(f)); n != 1 {
				t.Error(err)
			}
			sent.Add(1)
		}
	}()
	got, changes, next := 0, 0, int32(0)
	eventually(t, "all frames", func() bool {
		if now := sent.Load(); now >= next {
			changes++
			if err := d.Rebalance([]int{changes % 2, 1}); err != nil {
				t.Fatal(err)
			}
			if _, err := other.AddRule(r); !errors.Is(err, unix.EADDRINUSE) {
				t.Fatalf("after %d changes another process gets the port: %v", changes, err)
			}
			next = sent.Load() + 20
		}
		got += len(poll(d.Rx(0))) + len(poll(d.Rx(1)))
		return got == total && sent.Load() == total || t.Failed()
	})
	rules := portRules(d)
	if len(rules) != 2 || rules[0].Packets > total || rules[0].Packets == 0 ||
		len(s.netdev.drain()) != 0 {
		t.Errorf("%d changes: %+v", changes, rules)
	}
}

// TestRulesBesideTraffic adds and removes rules from several goroutines while frames come: no frame
// of another rule is lost, and nothing is left at the end.
func TestRulesBesideTraffic(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 4096}}})
	kept := addRule(t, d, listener(tcp, hostV4, 443))
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			for port := range uint16(20) {
				r, err := d.AddRule(listener(tcp, hostV4, uint16(1000*(i+1))+port))
				if err == nil {
					err = r.Close()
				}
				if err != nil {
					t.Error(fmt.Errorf("goroutine %d: %w", i, err))
				}
				d.Rules()
			}
		})
	}
	const total = 500
	for range total {
		s.wire.send(t, toHost(tcp, hostV4, 443))
	}
	running.Wait()
	if n := len(poll(d.Rx(0))); n != total {
		t.Errorf("%d of %d frames", n, total)
	}
	if err := kept.Close(); err != nil || len(portRules(d)) != 0 {
		t.Errorf("%v, left %+v", err, d.Rules())
	}
}
