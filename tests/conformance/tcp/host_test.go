package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// host is our end: a stack, the software ConnectX that it is on, and the wire.
type host struct {
	t     *testing.T
	v6    bool
	clock *virtual
	quiet quiet
	stack *stack.Stack
	wire  wire.Wire // the peer's end

	slow bool // a batch took longer than a turn

	mu   sync.Mutex
	sent []sent // not yet looked at

	listener *stack.TCPListener
	conns    []*stack.TCPConn
	conn     *stack.TCPConn // the one that calls are about
	read     map[*stack.TCPConn]uint32
	written  map[*stack.TCPConn]uint32
	calls    []*call // that have not been looked at
}

// sent is a frame of ours.
type sent struct {
	at   time.Duration
	data []byte
}

// newHost opens a stack with the options that configure sets.
func newHost(t *testing.T, v6 bool, configure func(*stack.Config)) *host {
	t.Helper()
	h := &host{t: t, v6: v6, clock: newVirtual(), quiet: newQuiet(),
		read: map[*stack.TCPConn]uint32{}, written: map[*stack.TCPConn]uint32{}}
	near, far := wire.Pair()
	h.wire = far
	h.must(far.Start(h.capture))
	nic, err := simnic.New(simnic.Config{Seed: 1, Clock: h.clock.Clock.Clock()})
	h.must(err)
	h.must(nic.ConnectWire(near))
	cfg := stack.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.New(nic, kernel.Config{EventQueues: true}).OpenNode,
				Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()},
			},
			MAC: ourMAC[:], Rings: dv.Rings{RxQueueSize: 64, TxQueueSize: 256},
		},
		Driver: func(d *dv.Config) {
			d.Tuning = dv.Tuning{SpareFrames: 64,
				TxBufferSize: 128 << 10}
		},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"),
			netip.MustParsePrefix("fd00::1/64")},
		Addressing: stack.AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
		Uplink:     stack.UplinkOptions{RxMode: stack.RxInterrupt},
		Clock:      h.clock.Clock.Clock(), Random: clocktest.Random(1),
	}
	if configure != nil {
		configure(&cfg)
	}
	h.await(func() { h.stack, err = stack.Open(context.Background(), cfg) })
	h.must(err)
	t.Cleanup(func() {
		h.await(func() { err = h.stack.Close() })
		h.must(err)
		h.must(nic.Close())
		h.must(near.Close())
		h.must(far.Close())
	})
	proto := tcpip.NetworkProtocolNumber(0x0800)
	if v6 {
		proto = 0x86dd
	}
	if err := h.stack.Netstack().AddStaticNeighbor(1, proto,
		tcpip.AddrFromSlice(address(v6, 2)), tcpip.LinkAddress(peerMAC[:])); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// patience is how long f may be in system calls, of the system's time.
const patience = time.Minute

// await runs f, and the time for as long as it takes.
func (h *host) await(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for began := time.Now(); ; {
		h.quiet.settle()
		select {
		case <-done:
			return
		default:
		}
		if h.clock.Step() {
			continue
		}
		if time.Since(began) > patience {
			h.t.Fatalf("it waits, and no timer is set\n%s", stacks())
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// stacks is what each goroutine is at.
func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}

// capture receives frames of ours, on the goroutine that sent them.
func (h *host) capture(frames []frame.Frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range frames {
		h.sent = append(h.sent, sent{h.clock.now(), append([]byte(nil), f.Data...)})
	}
}

// take is the oldest frame not yet looked at.
func (h *host) take() (s sent, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sent) == 0 {
		return s, false
	}
	s, h.sent = h.sent[0], h.sent[1:]
	return s, true
}

// turn is how long a goroutine runs at least before the runtime gives others their turn, which it
// does after 10 ms.
const turn = 5 * time.Millisecond

// deliver has frames arrive, all in one batch. If it takes longer than a turn, the receive worker
// may have run before the last of them.
func (h *host) deliver(frames [][]byte) {
	h.t.Helper()
	batch := make([]frame.Frame, len(frames))
	for i, f := range frames {
		batch[i].Data = f
	}
	runtime.Gosched() // to the others, who wait; our turn begins anew
	began := time.Now()
	_, err := h.wire.Send(batch)
	h.must(err)
	h.slow = h.slow || time.Since(began) > turn
}

// call is something that the application does.
type call struct {
	name   string
	at     time.Duration // when it returned
	result string        // "": it has not returned
}

// start begins a call.
func (h *host) start(name string, f func() error) {
	c := &call{name: name}
	h.calls = append(h.calls, c)
	go func() {
		err := f()
		h.mu.Lock()
		defer h.mu.Unlock()
		c.at, c.result = h.clock.now(), outcome(err)
	}()
}

// outcome names what a call returned.
func outcome(err error) string {
	var no syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "EOF"
	case errors.As(err, &no):
		return unix.ErrnoName(no)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "deadline"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	}
	return err.Error()
}

// netstackTCP returns a change of a configuration by options of netstack's TCP.
func netstackTCP(options ...tcpip.SettableTransportProtocolOption) func(*stack.Config) {
	return func(c *stack.Config) { c.TCP.Netstack = options }
}
