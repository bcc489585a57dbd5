package kernel

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// The errors are those of af_packet.c, and the memberships determine which frames pass.
func TestPacketSocket(t *testing.T) {
	nic := newTestNIC(t, simnic.Config{Function: simnic.Function{Kind: simnic.VF, Trusted: true}})
	near, far := wire.Pair()
	if err := errors.Join(nic.ConnectWire(near), far.Start(func([]frame.Frame) {})); err != nil {
		t.Fatal(err)
	}
	passes := func(mac net.HardwareAddr) bool {
		before := nic.Counters().Drops.SwitchFilter
		b := make([]byte, 60)
		copy(b, mac)
		far.Send([]frame.Frame{{Data: b}})
		return nic.Counters().Drops.SwitchFilter == before
	}
	if _, err := New(nic, Config{NoNetRaw: true}).OpenPacketSocket(); !errors.Is(err, unix.EPERM) {
		t.Errorf("without CAP_NET_RAW: %v", err)
	}
	own, group := net.HardwareAddr{2, 0, 0, 0, 0, 7}, net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 3}
	s, other := must(New(nic, Config{}).OpenPacketSocket())(t),
		must(New(nic, Config{}).OpenPacketSocket())(t)
	for _, step := range []struct {
		name       string
		do         func() error
		err        error
		own, group bool // frames that pass afterwards
	}{
		{"nothing", func() error { return nil }, nil, false, false},
		{"7 bytes", func() error { return s.Add(make(net.HardwareAddr, 7)) },
			unix.EINVAL, false, false},
		{"remove what is not there", func() error { return s.Remove(own) }, nil, false, false},
		{"add", func() error { return s.Add(own) }, nil, true, false},
		{"add again", func() error { return s.Add(own) }, nil, true, false},
		{"another's", func() error { return other.Add(own) }, nil, true, false},
		{"remove one of two", func() error { return s.Remove(own) }, nil, true, false},
		{"add a group", func() error { return s.Add(group) }, nil, true, true},
		{"remove the group", func() error { return s.Remove(group) }, nil, true, false},
		{"all groups", func() error { return s.Add(nil) }, nil, true, true},
		{"no longer all", func() error { return s.Remove(nil) }, nil, true, false},
		{"all again", func() error { return s.Add(nil) }, nil, true, true},
		{"close", s.Close, nil, true, false},
		{"add after close", func() error { return s.Add(group) }, unix.EBADF, true, false},
		{"close again", s.Close, unix.EBADF, true, false},
		{"close the other", other.Close, nil, false, false},
	} {
		if err := step.do(); !errors.Is(err, step.err) || (err == nil) != (step.err == nil) {
			t.Errorf("%s: %v, want %v", step.name, err, step.err)
		}
		if o, g := passes(own), passes(group); o != step.own || g != step.group {
			t.Errorf("%s: own passes %v, group %v", step.name, o, g)
		}
	}
}

// The netdev and the contexts of a port receive each other's frames once there is a second context,
// as linux configures the port. Until then a frame of the netdev for the first context leaves by
// the wire.
func TestLoopbackFollowsContexts(t *testing.T) {
	nic := newTestNIC(t, simnic.Config{})
	linux := New(nic, Config{})
	near, far := wire.Pair()
	netdev, tap := wire.Pair()
	if err := errors.Join(nic.ConnectWire(near), nic.ConnectNetdev(netdev),
		far.Start(func([]frame.Frame) {}), tap.Start(func([]frame.Frame) {})); err != nil {
		t.Fatal(err)
	}
	inside := func() bool {
		before := nic.Counters()
		b := make([]byte, 60)
		copy(b, testMAC[:])
		tap.Send([]frame.Frame{{Data: b}})
		now := nic.Counters()
		received, left := now.Slice.RxPackets-before.Slice.RxPackets,
			now.Wire.TxPackets-before.Wire.TxPackets
		if received+left != 1 {
			t.Errorf("%d received, %d left by the wire", received, left)
		}
		return received == 1
	}
	openClient(t, nic, linux).receiver(nil)
	if inside() {
		t.Error("one context hears the netdev")
	}
	second := must(uverbs.Open(must(linux.OpenNode())(t), uverbs.Options{}))(t)
	if !inside() {
		t.Error("one of two contexts does not hear the netdev")
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if inside() {
		t.Error("the context that is left hears the netdev")
	}
}
