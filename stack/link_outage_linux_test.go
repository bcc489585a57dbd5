package stack_test

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// TestOutage: without any other interface, what is sent to a peer goes on within 2 s of the
// device's return, and no connection is lost.
func TestOutage(t *testing.T) {
	outages := []time.Duration{time.Second}
	if os.Getenv("LONG") != "" {
		outages = append(outages, 10*time.Second, time.Minute, 119*time.Second)
	}
	for _, d := range outages {
		t.Run(d.String(), func(t *testing.T) {
			r := newRemovable(t, nil)
			l, err := r.stack.Listen("tcp", ":7")
			must(t, err)
			source := background(func() error {
				c, err := l.Accept()
				if err != nil {
					return err
				}
				defer c.Close()
				for block := make([]byte, 64<<10); ; {
					if _, err := c.Write(block); err != nil {
						return err
					}
				}
			})
			c := r.dial(t, 7)
			_, err = io.CopyN(io.Discard, c, 8<<20)
			must(t, err)
			r.remove(t, rdma.BackendNone)
			time.Sleep(d)
			for { // what was under way
				must(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
				if _, err := c.Read(make([]byte, 1<<20)); err != nil {
					break
				}
			}
			must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			began := time.Now()
			r.nic.RestoreDevice()
			_, err = io.ReadFull(c, make([]byte, 1))
			must(t, err)
			first := time.Since(began)
			_, err = io.CopyN(io.Discard, c, 8<<20)
			must(t, err)
			t.Logf("the first byte came %v after the device, 8 MiB %v, %+v", first,
				time.Since(began), r.stack.LinkStatus())
			c.Close()
			if err := result(t, "Write", source); errors.Is(err, syscall.ENETDOWN) {
				t.Error(err)
			}
		})
	}
}

// TestMaxOutage: when the device is away for too long, calls fail with ENETDOWN, and listeners
// serve again when it is back.
func TestMaxOutage(t *testing.T) {
	const limit = 500 * time.Millisecond
	r := newRemovable(t, func(c *stack.Config) { c.Uplink.MaxOutage = limit })
	serveEcho(t, r.stack, 7)
	u, err := r.stack.ListenPacket("udp", ":53")
	must(t, err)
	l, err := r.stack.Listen("tcp", ":80")
	must(t, err)
	client := r.dial(t, 80)
	server, err := l.Accept()
	must(t, err)
	read := background(func() error { _, err := server.Read(make([]byte, 1)); return err })
	r.remove(t, rdma.BackendNone)
	if err := result(t, "Read", read); !errors.Is(err, syscall.ENETDOWN) {
		t.Errorf("Read: %v", err)
	}
	if s := r.stack.LinkStatus(); !s.Expired || s.Reason == nil {
		t.Errorf("%+v", s)
	}
	_, writeErr := server.Write([]byte("x"))
	_, dialErr := r.stack.Dial("tcp", "10.9.0.2:1")
	_, sendErr := u.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 53})
	for name, err := range map[string]error{"Write": writeErr,
		"Dial": dialErr, "WriteTo": sendErr} {
		if !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.stack.Err(); err != nil {
		t.Errorf("the stack has ended: %v", err)
	}
	client.Close()
	r.back(t)
	c := r.dial(t, 7)
	_, err = c.Write([]byte("again"))
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, 5))
	must(t, err)
	_, err = u.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 53})
	must(t, err)
}

// TestAnotherModel returns another card in the device's place, with one receive queue where there
// were two, which takes no tags out and cannot copy multicast: it is used with what it has, and
// with what the configuration permits, and the connection goes on.
func TestAnotherModel(t *testing.T) {
	caps := simnic.DefaultCaps()
	caps.LogMaxRQT, caps.VLANStrip, caps.MultiPathFlows = 0, false, false
	other := cardWith(t, simnic.Config{Name: "sim_b", Seed: 2, Caps: caps})
	var now atomic.Pointer[simnic.NIC]
	r := newRemovable(t, func(c *stack.Config) {
		c.Driver = func(d *dv.Config) { d.TakeMulticast, d.Tuning.StripVLAN = true, true }
		first := c.NIC.Model.Kernel
		c.NIC.Model.Kernel = func() (uverbs.Kernel, error) {
			if nic := now.Load(); nic != nil {
				return kernel.Opener(nic)()
			}
			return first()
		}
	})
	must(t, r.nets[0].Do(func() error {
		w, err := wire.OpenPacket("eth0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { w.Close() })
		return other.ConnectWire(w)
	}))
	serveEcho(t, r.stack, 7)
	var stop atomic.Bool
	c := r.dial(t, 7)
	done := background(func() error { return bulk(c, &stop) })
	now.Store(other)
	r.nic.FailDevice()
	r.await(t, "back", func(s failover.Status) bool { return s.Returns == 1 })
	if n := r.stack.Device().NumRx(); n != 1 {
		t.Errorf("%d receive queues", n)
	}
	before := r.stack.LinkStats().Rings.RxPackets
	for deadline := time.Now().Add(hangs); r.stack.LinkStats().Rings.RxPackets < before+100; {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", r.stack.LinkStats())
		}
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	must(t, result(t, "bulk", done))
}

// TestManyRemovals removes and returns the device again and again under a transfer: the connection
// stays, and no goroutine and no memory region is left behind.
func TestManyRemovals(t *testing.T) {
	r := newRemovable(t, func(c *stack.Config) { c.Uplink.Fallback = "eth0" })
	serveEcho(t, r.stack, 7)
	var stop atomic.Bool
	c := r.dial(t, 7)
	done := background(func() error { return bulk(c, &stop) })
	goroutines := 0
	for i := range 10 {
		before := r.stack.LinkStatus()
		r.nic.FailDevice()
		r.await(t, "on packet sockets",
			func(s failover.Status) bool { return s.Backend == rdma.BackendPacket })
		r.await(t, "closed", func(s failover.Status) bool {
			r.stack.Recover() // a device that fails this soon is looked for later and later
			return s.Refused > before.Refused
		})
		r.nic.RestoreDevice()
		r.await(t, "back", func(s failover.Status) bool {
			r.stack.Recover()
			return s.Returns == before.Returns+1
		})
		frames := r.stack.LinkStats().Rings.RxPackets
		eventually(t, "the transfer on rings",
			func() bool { return r.stack.LinkStats().Rings.RxPackets > frames })
		if i == 1 {
			goroutines = runtime.NumGoroutine()
		}
		if i > 1 { // those of the old device end soon
			eventually(t, "as many goroutines as after two removals",
				func() bool { return runtime.NumGoroutine() <= goroutines+4 })
		}
	}
	stop.Store(true)
	must(t, result(t, "bulk", done))
	if s := r.stack.LinkStatus(); s.Losses != 10 || s.Returns != 10 {
		t.Errorf("%+v", s)
	}
}
