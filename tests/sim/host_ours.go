package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// ourHost is package stack over link/rdma, dv and a software NIC.
type ourHost struct {
	plan  HostPlan
	index int
	port  *port
	clock *timers
	mtu   int
	seed  uint64
	busy  *busy
	// doorbells get lost: the model takes a WQE in the doorbell register for a mistake then
	lenient bool
	// completions come late: some come of a queue that was reset meanwhile, which the driver resets
	// once more then, in a state that it does not expect
	late bool
	// something goes wrong in the NIC, so that it may count what never reaches the driver
	faulty bool
	nic    *simnic.NIC
	linux  *kernel.Linux
	stack  *stack.Stack // nil until the host is up
	books  *frameBooks  // of the device that was there at the last check

	opened chan struct{} // closed when up has ended
}

// up opens the device, and the stack on it. System calls are made until the driver has its memory,
// and in commands.
func (h *ourHost) up(ctx context.Context) (err error) {
	defer close(h.opened)
	h.busy.Add(1)
	begun := sync.OnceFunc(func() { h.busy.Add(-1) })
	defer begun()
	h.nic, err = simnic.New(simnic.Config{Name: fmt.Sprint("mlx5_", h.index), MTU: h.mtu,
		Card: h.plan.Card, Seed: h.seed, Clock: clock.New(h.clock)})
	if err != nil {
		return err
	}
	if err := h.nic.ConnectWire(cable{h.port}); err != nil {
		return err
	}
	h.linux = kernel.New(h.nic, kernel.Config{EventQueues: true})
	cfg := h.plan.Device
	cfg.Kernel, cfg.MAC = h.linux.OpenNode, hardware(h.index)
	cfg.Interpose = func(k uverbs.Kernel) uverbs.Kernel {
		return busyKernel{k, h.busy, begun, h.closing}
	}
	cfg.Facts = dv.PortFacts{Name: fmt.Sprint("mlx5_", h.index), Netdev: fmt.Sprint("eth", h.index),
		MAC: h.nic.MAC(), MTU: h.mtu}
	h.stack, err = stack.Open(ctx, stack.Config{
		NIC: cfg, RxMode: h.plan.RxMode, RxLimit: h.plan.RxLimit, NoFastPath: h.plan.NoFastPath,
		Addresses:          []netip.Prefix{netip.PrefixFrom(address(h.index), 24)},
		DuplicateDetection: h.plan.Detection,
		TCP: stack.TCPOptions{ACKDelay: h.plan.ACKDelay, DisableSACK: h.plan.DisableSACK,
			DisableRACK: h.plan.DisableRACK, SendBuffer: h.plan.Buffers,
			ReceiveBuffer: h.plan.Buffers},
		Clock: clock.New(h.clock), Random: clocktest.Random(h.seed),
	})
	return err
}

func (h *ourHost) listen(port uint16) (net.Listener, error) {
	return h.stack.Listen("tcp", netip.AddrPortFrom(address(h.index), port).String())
}

func (h *ourHost) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return h.stack.DialContext(ctx, "tcp", to.String())
}

func (h *ourHost) packets(port uint16) (net.PacketConn, error) {
	return h.stack.ListenPacket("udp", netip.AddrPortFrom(address(h.index), port).String())
}

// send does nothing: the NIC sends on its own.
func (h *ourHost) send() {}

func (h *ourHost) connections() []string {
	if h.stack == nil {
		return nil
	}
	return tcpEndpoints(h.stack.Netstack())
}

// closing is called when the driver closes its device node: it frees memory until the stack has
// ended.
func (h *ourHost) closing() {
	h.busy.Add(1)
	go func() {
		<-h.opened
		if h.stack != nil {
			h.stack.Close()
		}
		h.busy.Add(-1)
	}()
}

func (h *ourHost) down() error { return errors.Join(h.stack.Close(), h.nic.Close()) }

func (h *ourHost) left() error {
	if o := h.nic.Objects(); o != (simnic.Objects{}) {
		return fmt.Errorf("objects of the NIC are left: %+v", o)
	}
	if n := h.linux.Pinned(); n != 0 {
		return fmt.Errorf("%d bytes are still pinned", n)
	}
	if n := h.linux.Refused(); n != 0 && !h.late {
		return fmt.Errorf("the firmware refused %d changes of queues' states", n)
	}
	return h.clock.left()
}
