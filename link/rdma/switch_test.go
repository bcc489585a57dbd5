package rdma

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// another opens a device on a NIC of its own that takes frames for the address of device 1, and
// joins it to a new NIC, whose device is returned, too.
func another(t testing.TB, change func(*dv.Config)) (dev, peer *dv.Device) {
	t.Helper()
	nic, err := simnic.New(simnic.Config{MAC: net.HardwareAddr{2, 0, 0, 1, 0, 7}, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	cfg := dv.Config{NIC: dv.NIC{
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		Model: dv.Model{
			Kernel: kernel.Opener(nic),
			Facts:  dv.PortFacts{Name: "sim7", Netdev: "net7", MAC: nic.MAC(), MTU: nic.MTU()},
		},
	}}
	if change != nil {
		change(&cfg)
	}
	if dev, err = dv.Open(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), nic.Close()); err != nil {
			t.Error(err)
		}
	})
	peerNIC, peer := openDevice(t, 2, setup{})
	a, b := wire.Pair()
	for n, w := range map[*simnic.NIC]wire.Wire{nic: a, peerNIC: b} {
		if err := n.ConnectWire(w); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
	}
	return dev, peer
}

// TestSwitchKeepsOrder has segments wait for a NIC that delays completions, and puts another NIC in
// its place: all arrive, in order, and each counts for one of the two.
func TestSwitchKeepsOrder(t *testing.T) {
	const n = 1000
	s := newSending(t)
	s.alone()
	dev, peer := another(t, func(c *dv.Config) { c.Rings.TxQueueSize = 2048 })
	end, err := New(peer, Options{NoMerge: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end.Close)
	end.Attach(s.arrived)
	held := s.fill(t, n)
	before := s.Stats()
	s.arrived.await(t, int(before.Rings.TxFrames)) // the two wires have no order
	if err := s.Switch(Rings(dev)); err != nil {
		t.Fatal(err)
	}
	s.arrived.await(t, n)
	s.send(t, 1, n, n+10)
	s.arrived.await(t, n+10)
	got := s.Stats()
	if got.TxBacklog != 0 || got.TxBacklogDropped != 0 || got.Rings.TxFrames != n+10 ||
		before.Rings.TxFrames+before.TxBacklog != n || got.Switches != 1 {
		t.Errorf("before %+v, at the end %+v", before, got)
	}
	if dev.Stats().Tx[0].Packets != before.TxBacklog+10 {
		t.Errorf("the second device sent %d frames", dev.Stats().Tx[0].Packets)
	}
	held.release()
}

// TestSwitchToNone: what is sent meanwhile is dropped, and counts for nothing but that.
func TestSwitchToNone(t *testing.T) {
	s := newSending(t)
	s.send(t, 1, 0, 10)
	s.arrived.await(t, 10)
	first := s.queues.Load().backend.(rings).Device
	if err := s.Switch(None()); err != nil {
		t.Fatal(err)
	}
	if s.Backend() != BackendNone {
		t.Errorf("on %s", s.Backend())
	}
	s.send(t, 2, 0, 5)
	if err := s.Switch(Rings(first)); err != nil {
		t.Fatal(err)
	}
	s.send(t, 1, 10, 20)
	s.arrived.await(t, 20)
	got := s.Stats()
	if got.Rings.TxFrames != 20 || got.None.TxFrames != 5 || got.TxPackets != 25 ||
		got.Switches != 2 {
		t.Errorf("%+v", got)
	}
}

// slowGroups is a device whose kernel cannot change its lists before goOn is closed.
type slowGroups struct {
	rings
	goOn chan struct{}
	told *atomic.Int64 // how many groups
}

func (s slowGroups) SetGroups(groups []net.HardwareAddr) error {
	<-s.goOn
	s.told.Store(int64(len(groups)))
	return nil
}

// TestSwitchBeforeGroups: frames go out of the new queues while the kernel cannot be told of
// groups.
func TestSwitchBeforeGroups(t *testing.T) {
	s := newSending(t)
	if err := s.SetGroups([]net.HardwareAddr{{0x33, 0x33, 0, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	dev, _ := another(t, nil)
	slow := slowGroups{rings{dev}, make(chan struct{}), new(atomic.Int64)}
	goOn := sync.OnceFunc(func() { close(slow.goOn) })
	defer goOn()
	switched := make(chan error, 1)
	go func() { switched <- s.Switch(Backend{slow}) }()
	select {
	case err := <-switched:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Switch waits for the kernel to take the groups")
	}
	regrouped := make(chan error, 1)
	go func() { regrouped <- s.Regroup() }()
	s.send(t, 1, 0, 10)
	if n := dev.Stats().Tx[0].Packets; n != 10 {
		t.Errorf("%d frames left", n)
	}
	goOn()
	if err := <-regrouped; err != nil || slow.told.Load() != 1 {
		t.Errorf("%v, %d groups", err, slow.told.Load())
	}
}

// countsSlowly is a device whose kernel tells a counter at once the first time only.
type countsSlowly struct {
	rings
	goOn  chan struct{}
	asked *atomic.Int64
}

func (c countsSlowly) OutOfBuffer() uint64 {
	if c.asked.Add(1) > 1 {
		<-c.goOn
	}
	return 0
}

// TestSwitchBeforeCounting: frames go out of the new queues while the kernel does not tell what the
// old ones have dropped.
func TestSwitchBeforeCounting(t *testing.T) {
	s := newSending(t)
	first, _ := another(t, nil)
	dev, _ := another(t, nil)
	slow := countsSlowly{rings{first}, make(chan struct{}), new(atomic.Int64)}
	if err := s.Switch(Backend{slow}); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() { close(slow.goOn) })
	defer goOn()
	switched := make(chan error, 1)
	go func() { switched <- s.Switch(Rings(dev)) }()
	for slow.asked.Load() < 2 {
		runtime.Gosched()
	}
	s.send(t, 1, 0, 10)
	if n := dev.Stats().Tx[0].Packets; n != 10 {
		t.Errorf("%d frames left by the new device", n)
	}
	goOn()
	if err := <-switched; err != nil {
		t.Fatal(err)
	}
}

// TestSwitchDeliversTheRest: frames that the old queues have are delivered, before those of the new
// ones, and each counts once.
func TestSwitchDeliversTheRest(t *testing.T) {
	const n = 600 // more than a batch
	_, devs := devices(t, setup{})
	dev, peer := another(t, nil)
	e, err := New(devs[0], Options{NoMerge: true, RxMode: RxInterrupt})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	k := &slowStack{sink: newSink(), entered: make(chan struct{}), leave: make(chan struct{})}
	e.Attach(k)
	post(t, devs[1].Tx(0), frameOf(0))
	<-k.entered
	for i := 1; i < n; i++ {
		post(t, devs[1].Tx(0), frameOf(i))
	}
	switched := make(chan error, 1)
	go func() { switched <- e.Switch(Rings(dev)) }()
	for e.queues.Load().Name() != "sim7" {
		runtime.Gosched()
	}
	post(t, peer.Tx(0), frameOf(n))
	close(k.leave)
	if err := <-switched; err != nil {
		t.Fatal(err)
	}
	k.await(t, n+1)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, got := range k.numbers {
		if got != i {
			t.Fatalf("frame %d came in place of %d", got, i)
		}
	}
	if err := e.Switch(None()); err != nil { // a batch counts once all of it is delivered
		t.Fatal(err)
	}
	if s := e.Stats(); s.RxPackets != n+1 || s.Rings.RxPackets != n+1 {
		t.Errorf("%+v", s)
	}
}

// slowStack records the numbers of frames, and is held up by the first.
type slowStack struct {
	*sink
	once    sync.Once
	entered chan struct{}
	leave   chan struct{}
	numbers []int
}

func (s *slowStack) DeliverNetworkPacket(p tcpip.NetworkProtocolNumber, pkt *gstack.PacketBuffer) {
	s.once.Do(func() {
		close(s.entered)
		<-s.leave
	})
	b := pkt.Data().AsRange().ToSlice()
	s.mu.Lock()
	s.numbers = append(s.numbers, int(b[0])<<8|int(b[1]))
	s.mu.Unlock()
	s.sink.DeliverNetworkPacket(p, pkt)
}

// frameOf is an ARP frame to device 1 with a number.
func frameOf(i int) []byte {
	f := arpFrame()
	f[14], f[15] = byte(i>>8), byte(i)
	return f
}

// TestSwitchRefuses: queues that connections could not go on with change nothing.
func TestSwitchRefuses(t *testing.T) {
	_, devs := devices(t, setup{})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for name, tt := range map[string]struct {
		change func(*dv.Config)
		want   string
	}{
		"address": {func(c *dv.Config) { c.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 9} },
			"sim7 takes frames for 02:00:00:00:00:09, this link has 02:00:00:00:00:01"},
		"VLAN": {func(c *dv.Config) { c.VLAN = 5 }, "sim7 is in VLAN 5, this link in 0"},
	} {
		t.Run(name, func(t *testing.T) {
			dev, _ := another(t, tt.change)
			err := e.Switch(Rings(dev))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if e.Stats().Switches != 0 || e.queues.Load().backend != (rings{devs[0]}) {
				t.Error("something has changed")
			}
		})
	}
}

// TestSwitchMTU: the MTU is that of the queues in use, as it is now, and no more than SetMTU said.
func TestSwitchMTU(t *testing.T) {
	_, devs := devices(t, setup{mtu: 9000})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	dev, _ := another(t, func(c *dv.Config) { c.MTU = 1400 })
	want := func(what string, mtu uint32) {
		t.Helper()
		if got := e.MTU(); got != mtu {
			t.Errorf("%s: MTU %d, want %d", what, got, mtu)
		}
	}
	want("at first", 9000)
	for _, s := range []struct {
		what string
		to   Backend
		mtu  uint32
	}{
		{"smaller", Rings(dev), 1400}, {"none", None(), 1400}, {"larger", Rings(devs[0]), 9000},
	} {
		if err := e.Switch(s.to); err != nil {
			t.Fatal(err)
		}
		want(s.what, s.mtu)
	}
	devs[0].SetNetdevMTU(1500)
	e.FollowMTU()
	want("netdev lowered", 1500)
	devs[0].SetNetdevMTU(9216)
	e.FollowMTU()
	want("netdev raised, as far as the buffers go", 9216)
	devs[0].SetNetdevMTU(16000)
	e.FollowMTU()
	want("netdev raised beyond them", uint32(devs[0].MTULimit()))
	e.SetMTU(3000)
	want("cap", 3000)
	devs[0].SetNetdevMTU(2000)
	e.FollowMTU()
	want("netdev below the cap", 2000)
	e.SetMTU(1 << 20)
	want("no cap", 2000)
}

// TestSwitchConcurrently switches, attaches, sends and closes at the same time, and twice.
func TestSwitchConcurrently(t *testing.T) {
	_, devs := devices(t, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}}})
	dev, peer := another(t, func(c *dv.Config) { c.RxQueues, c.TxQueues = 3, 1 })
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	e.flows.Close() // nobody acknowledges what is sent here
	backends := []Backend{Rings(devs[0]), Rings(dev), None(), Rings(dev)}
	for first := range backends {
		wg.Go(func() {
			for i := range 20 {
				if err := e.Switch(backends[(first+i)%len(backends)]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			e.Attach(newSink())
			e.Attach(nil)
		}
		e.Attach(newSink())
	})
	for port := range uint16(2) {
		wg.Go(func() {
			for seq := range uint32(500) {
				pkt := segmentOf(port, seq)
				e.writeOne(pkt)
				pkt.DecRef()
				e.Stats()
			}
		})
	}
	wg.Go(func() {
		for range 500 {
			post(t, peer.Tx(0), arpFrame())
			post(t, devs[1].Tx(0), arpFrame())
		}
	})
	wg.Wait()
	s := e.Stats()
	if sent := s.Rings.TxFrames + s.None.TxFrames; sent+s.TxBacklogDropped+s.TxBacklog !=
		s.TxPackets || s.Switches == 0 {
		t.Errorf("%d frames posted, %+v", sent, s)
	}
	for range 2 {
		wg.Go(e.Close)
		wg.Go(func() {
			if err := e.Switch(None()); err != nil && !errors.Is(err, dv.ErrClosed) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.Close()
	if err := e.Switch(Rings(devs[0])); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("switch after close: %v", err)
	}
}
