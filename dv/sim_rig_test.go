package dv_test

import (
	"bytes"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	simframe "github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

var (
	netdevMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	ourMAC    = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x02}
	peerMAC   = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x03}
	otherMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x04}
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// wireEnd is the far end of a wire: what it gets is kept, in order.
type wireEnd struct {
	wire wire.Wire
	mu   sync.Mutex
	got  [][]byte
}

func newWireEnd(t testing.TB, w wire.Wire) *wireEnd {
	p := &wireEnd{wire: w}
	if err := w.Start(p.recv); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *wireEnd) recv(frames []simframe.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range frames {
		p.got = append(p.got, bytes.Clone(f.Data))
	}
}

// drain returns what came and forgets it.
func (p *wireEnd) drain() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

func (p *wireEnd) send(t testing.TB, frames ...[]byte) {
	t.Helper()
	for _, f := range frames {
		if n, err := p.wire.Send([]simframe.Frame{{Data: f}}); n != 1 {
			t.Fatalf("wire took %d frames: %v", n, err)
		}
	}
}

// sim is a software NIC, with a wire at its port and one at its netdev.
type sim struct {
	nic          *simnic.NIC
	linux        *kernel.Linux
	wire, netdev *wireEnd
}

func newSim(t testing.TB, cfg simnic.Config, linux kernel.Config) *sim {
	t.Helper()
	cfg.MAC = netdevMAC
	nic, err := simnic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{nic: nic, linux: kernel.New(nic, linux)}
	near, far := wire.Pair()
	nearNetdev, farNetdev := wire.Pair()
	if err := nic.ConnectWire(near); err != nil {
		t.Fatal(err)
	}
	if err := nic.ConnectNetdev(nearNetdev); err != nil {
		t.Fatal(err)
	}
	s.wire, s.netdev = newWireEnd(t, far), newWireEnd(t, farNetdev)
	t.Cleanup(func() {
		nic.Close()
		counters := nic.Counters()
		if err := counters.Check(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// config is cfg for this NIC.
func (s *sim) config(cfg dv.Config) dv.Config {
	c := s.nic.Config()
	cfg.Model.Facts = dv.PortFacts{Name: c.Name, Netdev: c.Netdev, MAC: s.nic.MAC(),
		MTU: s.nic.MTU()}
	if cfg.Model.Kernel == nil {
		cfg.Model.Kernel = s.linux.OpenNode
	}
	if cfg.MAC == nil {
		cfg.MAC = ourMAC
	}
	return cfg
}

// open opens the NIC, and closes it when the test ends.
func (s *sim) open(t testing.TB, cfg dv.Config) *dv.Device {
	t.Helper()
	d, err := dv.Open(t.Context(), s.config(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if v := s.nic.Violations(); len(v) > 0 {
			t.Errorf("the NIC let pass, but noticed: %s", strings.Join(v, "\n"))
		}
	})
	return d
}

// usual is a NIC with everything at its default, opened.
func usual(t testing.TB, cfg dv.Config) (*sim, *dv.Device) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	return s, s.open(t, cfg)
}

// poll takes everything that queue q has, copied, and releases the frames.
func poll(q *dv.RxQueue) []dv.Packet {
	var all []dv.Packet
	pkts := make([]dv.Packet, 64)
	for n := q.Poll(pkts); n > 0; n = q.Poll(pkts) {
		for _, p := range pkts[:n] {
			p.Data, p.More = bytes.Join(q.Segments(nil, &p), nil), 0
			all = append(all, p)
		}
		q.Release(pkts[:n])
	}
	return all
}

// frame is an Ethernet frame of n bytes with a counting payload.
func frame(dst, src net.HardwareAddr, etherType uint16, n int) []byte {
	f := make([]byte, n)
	copy(f, dst)
	copy(f[6:], src)
	f[12], f[13] = byte(etherType>>8), byte(etherType)
	for i := 14; i < n; i++ {
		f[i] = byte(i)
	}
	return f
}

// eventually waits until done is true: for what another goroutine does.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen in 10 s", what)
		}
		runtime.Gosched()
	}
}

// usage is what of this process' resources a device holds.
type usage struct{ fds, mappings, goroutines int }

// resources counts descriptors, mappings that devices may see (they are the
// ones kept from forked children, "dc"), and goroutines.
func resources(t testing.TB) usage {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	mappings := 0
	for line := range strings.Lines(string(maps)) {
		if strings.HasPrefix(line, "VmFlags:") && strings.Contains(line, " dc") {
			mappings++
		}
	}
	return usage{len(fds), mappings, runtime.NumGoroutine()}
}

// sameResources fails if the process holds more than it held before.
func sameResources(t testing.TB, before usage) {
	t.Helper()
	// Goroutines that were joined may still be on their way out.
	eventually(t, "the end of all goroutines",
		func() bool { return runtime.NumGoroutine() <= before.goroutines })
	now := resources(t)
	if now.fds > before.fds || now.mappings > before.mappings {
		t.Errorf("holds %+v, held %+v before", now, before)
	}
}
