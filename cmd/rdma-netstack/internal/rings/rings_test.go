package rings

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Addresses of the two ends.
var (
	macA = net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 1}
	macB = net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 2}
)

// open opens a software NIC that is connected to w.
func open(t *testing.T, mac net.HardwareAddr, w wire.Wire, mtu int) *dv.Device {
	t.Helper()
	nic, err := simnic.New(simnic.Config{MTU: mtu})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	if err := nic.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	dev, err := dv.Open(t.Context(), dv.Config{
		NIC: dv.NIC{
			MAC: mac,
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts:  dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: mtu},
			},
			Rings: dv.Rings{RxQueueSize: 4096},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// pair is two devices on one cable.
func pair(t *testing.T, mtu int) (a, b *dv.Device) {
	wa, wb := wire.Pair()
	return open(t, macA, wa, mtu), open(t, macB, wb, mtu)
}

// sizes are lengths of frames that arrive in one buffer of the ring, and in several.
var sizes = []struct{ mtu, frame int }{{1500, 1514}, {9000, 9014}}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// background runs work until the test or stop ends it.
func background(t *testing.T, work func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := work(ctx); err != nil {
			t.Errorf("background: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// frames is less than the receive ring holds, so that none may be lost.
const frames = 3000

func TestGenerateAndCount(t *testing.T) {
	a, b := pair(t, 1500)
	var c Counter
	stop := background(t, func(ctx context.Context) error { return c.Receive(ctx, b.Rx(0)) })
	f, err := Template(macB, macA, MinFrame)
	if err != nil {
		t.Fatal(err)
	}
	g := Generator{Frames: [][]byte{f}, Marked: true, Run: 7, Flows: 4, Count: frames}
	if err := g.Send(t.Context(), a.Tx(0)); err != nil {
		t.Fatal(err)
	}
	until(t, "all frames counted", func() bool { return c.Tally().Marked == frames })
	stop()
	if n, bytes, _ := g.Sent(); n != frames || bytes != frames*MinFrame {
		t.Errorf("sent %d frames, %d bytes", n, bytes)
	}
	if got := c.Tally(); got.Frames != frames || got.Bytes != frames*MinFrame || got.Late != 0 ||
		c.Highest()[7] != frames {
		t.Errorf("counted %+v, highest %v", got, c.Highest())
	}
}

func TestLossAndDisorderAreSeen(t *testing.T) {
	a, b := net.HardwareAddr(macA), net.HardwareAddr(macB)
	f, _ := Template(b, a, MinFrame)
	c := Counter{next: map[uint32]uint64{}}
	for _, seq := range []uint64{0, 1, 4, 3, 4} {
		mark(f, 9, seq, 1)
		c.look(f)
	}
	c.look(make([]byte, 60)) // not generated
	if got := c.Tally(); got.Marked != 5 || got.Late != 2 || c.Highest()[9] != 5 {
		t.Errorf("%+v, highest %v", got, c.Highest())
	}
}

func TestBounce(t *testing.T) {
	for _, size := range sizes {
		a, b := pair(t, size.mtu)
		fw, c := Forwarder{}, Counter{}
		stopB := background(t, func(ctx context.Context) error {
			return fw.Bounce(ctx,
				b.Rx(0), b.Tx(0), b.Pool())
		})
		stopA := background(t, func(ctx context.Context) error { return c.Receive(ctx, a.Rx(0)) })
		f, _ := Template(macB, macA, size.frame)
		g := Generator{Frames: [][]byte{f}, Marked: true, Count: 1000}
		if err := g.Send(t.Context(), a.Tx(0)); err != nil {
			t.Fatal(err)
		}
		until(t, "all frames back", func() bool { return c.Tally().Marked == 1000 })
		stopA()
		stopB()
		want := uint64(size.frame) * 1000
		if n, bytes, dropped := fw.Forwarded(); n != 1000 || bytes != want ||
			dropped != 0 || c.Tally().Bytes != want {
			t.Errorf("forwarded %d frames, %d bytes, dropped %d, %d bytes back", n,
				bytes, dropped, c.Tally().Bytes)
		}
	}
}

func TestCross(t *testing.T) {
	for _, size := range sizes {
		a, b := pair(t, size.mtu)
		c, d := pair(t, size.mtu)
		fw, count := Forwarder{To: macB, From: macA}, Counter{}
		stopX := background(t, func(ctx context.Context) error {
			return fw.Cross(ctx, b.Rx(0),
				c.Tx(0))
		})
		stopD := background(t,
			func(ctx context.Context) error { return count.Receive(ctx, d.Rx(0)) })
		f, _ := Template(macB, macA, size.frame)
		g := Generator{Frames: [][]byte{f}, Marked: true, Count: 1000}
		if err := g.Send(t.Context(), a.Tx(0)); err != nil {
			t.Fatal(err)
		}
		until(t, "all frames across", func() bool {
			_, _, dropped := fw.Forwarded()
			return count.Tally().Marked+dropped == 1000
		})
		stopX()
		stopD()
		if n, bytes, _ := fw.Forwarded(); bytes != n*uint64(size.frame) || n == 0 ||
			count.Tally().Bytes != bytes {
			t.Errorf("forwarded %d frames, %d bytes, %d bytes came", n, bytes, count.Tally().Bytes)
		}
	}
}

func TestEndsWithContext(t *testing.T) {
	a, b := pair(t, 1500)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var c Counter
	if err := c.Receive(ctx, b.Rx(0)); err != nil {
		t.Errorf("receive: %v", err)
	}
	f, _ := Template(macB, macA, MinFrame)
	if err := (&Generator{Frames: [][]byte{f}}).Send(ctx, a.Tx(0)); err != nil {
		t.Errorf("send: %v", err)
	}
	b.Stop()
	if err := c.Receive(context.Background(), b.Rx(0)); err != nil &&
		!errors.Is(err, dv.ErrClosed) {
		t.Errorf("receive on a stopped device: %v", err)
	}
}

func TestTemplate(t *testing.T) {
	if _, err := Template(macB, macA, MinFrame-1); err == nil {
		t.Error("a frame without room for its mark was made")
	}
	f, err := Template(macB, macA, 100)
	if err != nil || headerSum(f[14:34]) != 0 {
		t.Errorf("%v, header does not sum to zero: % x", err, f[14:34])
	}
}

func TestNothingAllocatesPerFrame(t *testing.T) {
	a, _ := pair(t, 1500)
	f, _ := Template(macA, macB, 64) // to ourselves: it is sent, and no port receives it
	g := Generator{Frames: [][]byte{f}, Marked: true}
	p := dv.TxPacket{Bufs: make([][]byte, 1)}
	q := a.Tx(0)
	if n := testing.AllocsPerRun(100,
		func() { g.post(q, &p, 0, 8); q.Flush(); q.Reclaim() }); n != 0 {
		t.Errorf("%v allocations per burst", n)
	}
}

// Forwarding allocates nothing either: neither when the received buffer is sent, nor when the frame
// is copied, whether it is in one buffer or in several.
func TestForwardingAllocatesNothing(t *testing.T) {
	for _, size := range sizes {
		a, b := pair(t, size.mtu)
		fw, out := Forwarder{}, dv.TxPacket{Bufs: make([][]byte, 0, 8)}
		bounce := func(pkts []dv.Packet) { fw.bounce(pkts, b.Rx(0), b.Tx(0), b.Pool()) }
		cross := func(pkts []dv.Packet) { fw.cross(pkts, b.Rx(0), b.Tx(0), &out) }
		f, _ := Template(macB, macA, size.frame)
		g := Generator{Frames: [][]byte{f}, Marked: true}
		p, pkts, q := dv.TxPacket{Bufs: make([][]byte, 1)}, make([]dv.Packet, burst), a.Tx(0)
		for name, forward := range map[string]func([]dv.Packet){"bounced": bounce,
			"crossed": cross} {
			before, _, _ := fw.Forwarded()
			if n := testing.AllocsPerRun(100, func() {
				g.post(q, &p, 0, 8)
				q.Flush()
				q.Reclaim()
				forward(pkts[:b.Rx(0).Poll(pkts)])
				a.Rx(0).Release(pkts[:a.Rx(0).Poll(pkts)])
			}); n != 0 {
				t.Errorf("%d bytes, %s: %v allocations per burst", size.frame, name, n)
			}
			if after, _, dropped := fw.Forwarded(); after-before != 808 || dropped != 0 {
				t.Errorf("%d bytes, %s: %d frames, %d dropped", size.frame,
					name, after-before, dropped)
			}
		}
	}
}
