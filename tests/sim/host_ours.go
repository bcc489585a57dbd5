package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// ourHost is package stack over link/rdma, dv and a software NIC.
type ourHost struct {
	plan  HostPlan
	index int
	port  *port
	clock *timers
	mtu   int

	netdevMAC atomic.Pointer[net.HardwareAddr] // once it has changed
	seed      uint64
	busy      *busy
	// error completions of receive queues get lost, come late or are passed over in a reset for
	// another cause: the driver does not know then in what state the queue is that it resets, and
	// tries both. A send queue may be in error when its device leaves, or its process is killed.
	unseen bool
	// something goes wrong in the NIC, so that it may count what never reaches the driver
	faulty bool
	slot   slot
	netdev *netdev      // carries frames while the device is away; nil: nothing does
	kernel *kernelModel // shares the address with us; nil: it is our own
	beside beside       // the kernel's part of the port
	// rulesStay: the device has rules for all ports whenever a frame may come
	rulesStay bool
	muted     atomic.Uint64 // frames that it had dropped when it began to
	stack     *stack.Stack  // nil until the host is up
	books     deviceBooks

	opened chan struct{} // closed when up has ended
	ending atomic.Bool   // down has begun
}

// up opens the device, and the stack on it.
func (h *ourHost) up(ctx context.Context) error {
	defer close(h.opened)
	h.busy.Add(1)
	err := h.insert(h.plan.Card)
	h.busy.Add(-1)
	if err != nil {
		return err
	}
	if h.kernel != nil {
		if err := h.kernel.net.build(); err != nil {
			return err
		}
	}
	if h.plan.Refusals > 0 {
		if err := h.refused(ctx); err != nil {
			return err
		}
	}
	return h.open(ctx)
}

// refused has the device opened while too little memory may be locked: that is refused in words,
// and nothing is left.
func (h *ourHost) refused(ctx context.Context) error {
	for range h.plan.Refusals {
		h.slot.refuse(1)
		h.busy.maps.Store(true) // the driver frees its memory before it closes the node
		if err := h.open(ctx); !errors.Is(err, dv.ErrMemlock) {
			return fmt.Errorf("opened where memory cannot be locked: %w", err)
		}
		if err := h.slot.empty(); err != nil {
			return err
		}
	}
	return nil
}

func (h *ourHost) open(ctx context.Context) (err error) {
	h.stack, err = h.openStack(ctx, h.config(), &h.ending)
	return err
}

// openStack opens a stack, which ends once ending is set. System calls are made until the driver
// has its memory, and in commands.
func (h *ourHost) openStack(ctx context.Context, cfg stack.Config, ending *atomic.Bool) (
	s *stack.Stack, err error) {
	ended := make(chan struct{})
	defer close(ended)
	h.busy.Add(1)
	begun := sync.OnceFunc(func() { h.busy.Add(-1) })
	defer begun()
	change := cfg.Driver
	cfg.Driver = func(d *dv.Config) {
		if change != nil {
			change(d)
		}
		d.Interpose = func(k uverbs.Kernel) uverbs.Kernel {
			return busyKernel{k, h.busy, begun, func() { h.closing(ended, &s, ending) }}
		}
	}
	return stack.Open(ctx, cfg)
}

func (h *ourHost) config() stack.Config {
	c := h.options()
	if h.kernel != nil {
		return h.onHost(c)
	}
	c.NIC = h.plan.Device.NIC
	c.Driver = h.tune
	c.NIC.Model.Kernel, c.NIC.MAC = h.slot.open, hardware(h.index)
	c.NIC.Model.Facts = dv.PortFacts{Name: fmt.Sprint("mlx5_", h.index),
		Netdev: fmt.Sprint("eth", h.index), MAC: h.slot.card().MAC(), MTU: h.mtu}
	if h.plan.NetdevMAC {
		c.NIC.Model.Facts.MAC, c.NIC.Steering.AllowNetdevMAC = hardware(h.index), true
	}
	if h.netdev != nil {
		c.Uplink.Fallback, c.Uplink.OpenInterface = h.netdev.name, h.netdev.openSockets
	}
	return c
}

// tune gives the driver what the plan has of it.
func (h *ourHost) tune(d *dv.Config) {
	d.Tuning = h.plan.Device.Tuning
	if !h.plan.InPlace && !rdma.SendMemoryPoisoned {
		*d = d.WithSendMemory(nil)
	}
}

// netstackTCP returns the options of netstack's TCP that the plan changes.
func (h *ourHost) netstackTCP() []tcpip.SettableTransportProtocolOption {
	recovery := tcpip.TCPRACKLossDetection
	if h.plan.DisableRACK {
		recovery = 0
	}
	return []tcpip.SettableTransportProtocolOption{
		new(tcpip.TCPSACKEnabled(!h.plan.DisableSACK)), &recovery,
		new(tcpip.TCPAlwaysUseSynCookies(h.plan.Memory.Cookies))}
}

// options are the config but for the device.
func (h *ourHost) options() stack.Config {
	memory, send := h.plan.Memory, h.plan.Buffers
	if memory.Send > 0 {
		send = stack.BufferRange{Min: 4 << 10, Default: memory.Send, Max: memory.Send}
	}
	receive := h.plan.Buffers
	if memory.FixedReceive {
		receive.Default = cmp.Or(receive.Default, 1<<20)
		receive.Max = receive.Default
	}
	var dynamic stack.Dynamic
	if h.plan.Leased {
		dynamic = stack.DHCPv4
	}
	return stack.Config{
		Dynamic: dynamic,
		Uplink: stack.UplinkOptions{
			RxMode:      h.plan.RxMode,
			MaxOutage:   h.plan.MaxOutage,
			GracePeriod: h.plan.Grace,
			RxLimit:     h.plan.RxLimit,
		}, NoFastPath: h.plan.NoFastPath,
		Addresses: h.plan.prefixes(h.index),
		Addressing: stack.AddressOptions{
			DuplicateDetection: h.plan.Detection,
			Timeout:            upLimit,
		},
		TCP: stack.TCPOptions{ACKDelay: h.plan.ACKDelay, SendBuffer: send,
			ReceiveBuffer: receive, Backlog: memory.Backlog, Netstack: h.netstackTCP()},
		UDPBuffer: stack.BufferRange{Default: cmp.Or(memory.UDPRead, memory.UDPWrite)},
		Clock:     clock.New(h.clock), Random: clocktest.Random(h.seed),
	}
}

func (h *ourHost) listen(at netip.AddrPort) (net.Listener, error) {
	lc := h.stack.ListenConfig()
	lc.Pacing = h.plan.Rate
	return lc.Listen(context.Background(), "tcp", at.String())
}

func (h *ourHost) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	c, err := h.stack.DialContext(ctx, "tcp", to.String())
	if err != nil || h.plan.Rate == 0 {
		return c, err
	}
	return c, c.(*stack.TCPConn).SetPacing(h.plan.Rate)
}

func (h *ourHost) packets(at netip.AddrPort) (net.PacketConn, error) {
	c, err := h.stack.ListenPacket("udp", at.String())
	if err != nil || h.plan.Rate == 0 {
		return c, err
	}
	return c, c.(*stack.UDPConn).SetPacing(h.plan.Rate)
}

// send gives the switch what the kernel beside us has written; the NIC sends on its own.
func (h *ourHost) send() {
	if h.kernel != nil {
		h.kernel.net.send()
	}
}

func (h *ourHost) connections() []string {
	if h.stack == nil {
		return nil
	}
	return tcpEndpoints(h.stack.Netstack())
}

// closing is called when the driver closes its device node. If it does so because the stack ends,
// memory is freed until *s has ended; if that was never opened, until ended is closed.
func (h *ourHost) closing(ended <-chan struct{}, s **stack.Stack, ending *atomic.Bool) {
	select {
	case <-ended:
		if !ending.Load() {
			h.busy.maps.Store(true) // the device was lost
			return
		}
	default:
	}
	h.busy.Add(1)
	go func() {
		<-ended
		if *s != nil {
			(*s).Close()
		}
		h.busy.Add(-1)
	}()
}

func (h *ourHost) down() error {
	h.ending.Store(true)
	err := h.stack.Close()
	switch {
	case h.kernel != nil:
		err = errors.Join(err, h.kernel.net.down())
	case h.netdev != nil:
		h.netdev.port.connect(nil)
	}
	return errors.Join(err, h.slot.card().Close())
}

func (h *ourHost) left() error {
	if err := errors.Join(h.slot.left(h.unseen), h.books.held()); err != nil {
		return err
	}
	if h.netdev != nil {
		if err := h.netdev.left(); err != nil {
			return err
		}
	}
	if h.kernel != nil {
		if err := h.kernel.left(); err != nil {
			return err
		}
	}
	return h.clock.left()
}
