package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// process is one stack of an upgraded host.
type process struct {
	stack   *stack.Stack
	meeting *meeting
	handed  chan error    // what HandOver returned
	over    chan struct{} // closed when it has ended
	ended   sync.Once
	ending  atomic.Bool // the stack is closed, or will be
	killed  atomic.Bool
	books   deviceBooks // guarded by the host's mu

	mu      sync.Mutex         // covers what follows
	sockets []packet.Interface // open, or closed
	nodes   []uverbs.Kernel    // likewise
}

// start starts a process, which others can take over from.
func (h *upgradedHost) start(ctx context.Context, before *stack.Predecessor) (*process, error) {
	h.mu.Lock()
	number := h.started
	h.started++
	h.mu.Unlock()
	p := &process{handed: make(chan error, 1), over: make(chan struct{})}
	var cfg stack.Config
	if h.netdev != nil {
		cfg = h.options()
		cfg.Uplink.Backend = stack.BackendPacket
		cfg.Uplink.OpenInterface = func(c packet.Config) (packet.Interface, error) {
			return p.openSockets(h.netdev, c)
		}
		cfg.NIC = dv.NIC{
			Device:   h.netdev.name,
			MAC:      hardware(h.index),
			RxQueues: h.plan.Device.RxQueues,
			Model: dv.Model{
				Kernel: func() (uverbs.Kernel, error) { return nil, unix.ENODEV },
			},
		}

	} else {
		cfg = h.config()
		cfg.NIC.Model.Kernel = func() (uverbs.Kernel, error) { return p.openNode(&h.slot) }
	}
	cfg.Predecessor, cfg.Random = before, clocktest.Random(h.seed+uint64(number)<<56)
	var err error
	if h.netdev != nil {
		p.stack, err = stack.Open(ctx, cfg)
	} else {
		p.stack, err = h.openStack(ctx, cfg, &p.ending)
	}
	if err != nil {
		return nil, err
	}
	p.meeting = newMeeting(clock.New(h.now.Clock), h.plan.Messages, h.plan.Late)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.processes = append(h.processes, p)
	h.waiting.Go(func() { p.handed <- p.stack.HandOver(h.ctx, p.meeting) })
	return p, nil
}

// openSockets opens packet sockets of a process that lives.
func (p *process) openSockets(d *netdev, c packet.Config) (packet.Interface, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed.Load() {
		return nil, unix.ENODEV
	}
	s, err := d.openSockets(c)
	if err == nil {
		p.sockets = append(p.sockets, s)
	}
	return s, err
}

// openNode opens the device node of a process that lives.
func (p *process) openNode(s *slot) (uverbs.Kernel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed.Load() {
		return nil, unix.ENODEV
	}
	k, err := s.open()
	if err == nil {
		p.nodes = append(p.nodes, k)
	}
	return k, err
}

// end has shut end a process, unless that was done already, and takes note of what there was.
func (h *upgradedHost) end(p *process, shut func() error) (err error) {
	p.ended.Do(func() {
		p.ending.Store(true)
		err = shut()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.past.links = sum(h.past.links, p.stack.LinkStats())
		received, sent := p.books.frames()
		h.past.received += received
		h.past.sent += sent
		h.past.inPlace += p.books.inPlace()
		if !p.killed.Load() { // else the kernel ends it all
			err = errors.Join(err, p.books.held())
		}
		h.past.meetings = append(h.past.meetings, p.meeting)
		h.processes = slices.DeleteFunc(h.processes, func(o *process) bool { return o == p })
		close(p.over)
	})
	return err
}

// idle reports whether a process has no connection left, but for TIME-WAIT.
func (p *process) idle() bool {
	return p.stack.Conns() == 0 && !slices.ContainsFunc(tcpEndpoints(p.stack.Netstack()),
		func(c string) bool {
			return !strings.HasSuffix(c, "LISTEN") && !strings.HasSuffix(c, "TIME-WAIT")
		})
}

// connection is one of a process.
type connection struct {
	ports [2]uint16 // its own, and the other one
	ep    *tcp.Endpoint
}

// connections are those of a process, in the order of their ports.
func (p *process) connections() (all []connection) {
	for _, ep := range p.stack.Netstack().RegisteredEndpoints() {
		if ep, ok := ep.(*tcp.Endpoint); ok && tcp.EndpointState(ep.State()) != tcp.StateListen {
			id := ep.Info().(*gstack.TransportEndpointInfo).ID
			all = append(all, connection{[2]uint16{id.LocalPort, id.RemotePort}, ep})
		}
	}
	slices.SortFunc(all, func(a, b connection) int {
		return slices.Compare(a.ports[:], b.ports[:])
	})
	return all
}

// abort ends what is left of connections in the order of their ports; netstack does so in any.
func (p *process) abort() {
	for _, c := range p.connections() {
		c.ep.Abort()
	}
}
