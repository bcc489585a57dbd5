package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// upgradedHost is package stack over packet sockets, in a process in whose place others come. It
// has a netdev where other hosts of ours have a slot with a card.
type upgradedHost struct {
	*ourHost
	ctx    context.Context // ends when the host goes down
	cancel context.CancelFunc

	upgrading sync.Mutex // held by the upgrade under way

	mu        sync.Mutex // covers what follows
	processes []*process // those that have not ended, the oldest first
	serving   []*process // those of them that listen
	clients   *process   // the one that gets new clients, and dials
	started   int
	sockets   []served   // of the host
	past      rdma.Stats // of processes that have ended
	waiting   sync.WaitGroup
}

// served is a socket of the host.
type served interface {
	serve(p *process) error
	remove(p *process) error
}

// process is one stack of the host.
type process struct {
	stack   *stack.Stack
	meeting *meeting
	handed  chan error // what HandOver returned
}

func newUpgradedHost(h *ourHost, n *network) *upgradedHost {
	h.netdev = &netdev{plan: h.plan.Netdev, name: fmt.Sprint("eth", h.index), mtu: h.mtu,
		port: h.port, clock: n.clock}
	u := &upgradedHost{ourHost: h}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	return u
}

func (h *upgradedHost) up(ctx context.Context) error {
	h.port.connect(h.netdev.receive)
	p, err := h.start(ctx, nil)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients, h.serving = p, []*process{p}
	return nil
}

// start starts a process, which others can take over from.
func (h *upgradedHost) start(ctx context.Context, before *stack.Predecessor) (*process, error) {
	h.mu.Lock()
	number := h.started
	h.started++
	h.mu.Unlock()
	cfg := h.options()
	cfg.Backend, cfg.Predecessor, cfg.OpenInterface = stack.BackendPacket, before,
		h.netdev.openSockets
	cfg.NIC = dv.Config{Device: h.netdev.name, MAC: hardware(h.index),
		RxQueues: h.plan.Device.RxQueues,
		Kernel:   func() (uverbs.Kernel, error) { return nil, unix.ENODEV }}
	cfg.Random = clocktest.Random(h.seed + uint64(number)<<56)
	s, err := stack.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	m := newMeeting(clock.New(h.netdev.clock.Clock), h.plan.Messages, h.plan.Late)
	p := &process{stack: s, meeting: m, handed: make(chan error, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.processes = append(h.processes, p)
	h.waiting.Go(func() { p.handed <- s.HandOver(h.ctx, m) })
	return p, nil
}

// newest is the process that gets new clients.
func (h *upgradedHost) newest() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients
}

// upgrade has a new process take the place of the newest.
func (h *upgradedHost) upgrade(t *task, givesUp int) error {
	t.calls("wait for the upgrade before")
	t.be(true)
	h.upgrading.Lock()
	t.be(false)
	old, err := h.takeOver(t, givesUp)
	h.upgrading.Unlock()
	if err != nil {
		return err
	}
	t.w.logf("%s: a new process gets the clients", t.name)
	t.calls("wait for the end of HandOver")
	if err := <-old.handed; err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	return h.retire(t, old)
}

// takeOver starts a process that gets all new clients.
func (h *upgradedHost) takeOver(t *task, givesUp int) (old *process, err error) {
	old = h.newest()
	for range givesUp {
		t.calls("meet a process, and leave it alone")
		before, err := h.meet(t, old)
		if err != nil {
			return nil, err
		}
		if err := before.Close(); err != nil {
			return nil, err
		}
	}
	t.calls("meet a process")
	before, err := h.meet(t, old)
	if err != nil {
		return nil, err
	}
	t.calls("start a process")
	next, err := h.start(h.ctx, before)
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	if err := h.listenToo(next); err != nil {
		return nil, err
	}
	t.calls("take over")
	if err := next.stack.TakeOver(h.ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients = next
	return old, nil
}

// meet meets a process, once the one before that has ended.
func (h *upgradedHost) meet(t *task, p *process) (*stack.Predecessor, error) {
	t.be(true)
	defer t.be(false)
	c, err := p.meeting.dial()
	if err != nil {
		return nil, fmt.Errorf("meet a process: %w", err)
	}
	return stack.MeetPredecessorOn(h.ctx, c)
}

// listenToo has a process listen wherever the host does.
func (h *upgradedHost) listenToo(p *process) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving = append(h.serving, p)
	var errs []error
	for _, s := range h.sockets {
		errs = append(errs, s.serve(p))
	}
	return errors.Join(errs...)
}

// A process that gets no new clients looks every lastLook whether it has any left.
const (
	lastLook  = 20 * time.Millisecond
	lastLimit = 100 * time.Second // after the last fault
	// drainLimit is how long stack.Drain takes at most; handshakes that take longer are lost.
	drainLimit = 3 * time.Second
)

// retire ends a process when it has no connection left.
func (h *upgradedHost) retire(t *task, p *process) error {
	t.calls("drain")
	began := t.w.clock.now()
	if err := p.stack.Drain(h.ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if t.w.clock.now()-began >= drainLimit {
		t.w.logf("%s: handshakes did not end", t.name)
		t.w.cutHandshakes()
	}
	h.mu.Lock()
	h.serving = slices.DeleteFunc(h.serving, func(o *process) bool { return o == p })
	sockets := slices.Clone(h.sockets)
	h.mu.Unlock()
	var errs []error
	for _, s := range sockets {
		errs = append(errs, s.remove(p))
	}
	end := func() error { return p.stack.Shutdown(h.ctx) }
	if h.finish(t, p); p.stack.Conns() > 0 {
		end = p.stack.Close
	}
	p.abort()
	t.calls("shut a process down")
	errs = append(errs, end())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.past = sum(h.past, p.stack.LinkStats())
	h.processes = slices.DeleteFunc(h.processes, func(o *process) bool { return o == p })
	return errors.Join(errs...)
}

// over reports whether a process has no connection left, but for TIME-WAIT.
func (p *process) over() bool {
	return p.stack.Conns() == 0 && !slices.ContainsFunc(tcpEndpoints(p.stack.Netstack()),
		func(c string) bool {
			return !strings.HasSuffix(c, "LISTEN") && !strings.HasSuffix(c, "TIME-WAIT")
		})
}

// abort ends what is left of connections in the order of their ports; netstack does so in any.
func (p *process) abort() {
	type connection struct {
		ports [2]uint16
		ep    *tcp.Endpoint
	}
	var all []connection
	for _, ep := range p.stack.Netstack().RegisteredEndpoints() {
		if ep, ok := ep.(*tcp.Endpoint); ok && tcp.EndpointState(ep.State()) != tcp.StateListen {
			local, _ := ep.GetLocalAddress()
			remote, _ := ep.GetRemoteAddress()
			all = append(all, connection{[2]uint16{local.Port, remote.Port}, ep})
		}
	}
	slices.SortFunc(all, func(a, b connection) int {
		return slices.Compare(a.ports[:], b.ports[:])
	})
	for _, c := range all {
		c.ep.Abort()
	}
}

// finish waits until a process has no connection left, or none but those whose peer does not answer
// any more.
func (h *upgradedHost) finish(t *task, p *process) {
	t.calls("wait for the last connection")
	t.be(true)
	defer t.be(false)
	for !p.over() && t.w.clock.now() < t.w.calm+lastLimit {
		_ = clock.New(h.clock).Sleep(context.Background(), lastLook)
	}
}

func (h *upgradedHost) listen(at netip.AddrPort) (net.Listener, error) {
	l := sharedListener{newShared[net.Conn](at)}
	return l, h.serve(l)
}

func (h *upgradedHost) packets(at netip.AddrPort) (net.PacketConn, error) {
	c := sharedPackets{newShared[datagram](at), h}
	return c, h.serve(c)
}

// serve adds a socket to the host.
func (h *upgradedHost) serve(s served) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, p := range h.serving {
		errs = append(errs, s.serve(p))
	}
	h.sockets = append(h.sockets, s)
	return errors.Join(errs...)
}

func (h *upgradedHost) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return h.newest().stack.DialContext(ctx, "tcp", to.String())
}

func (h *upgradedHost) check() error { return h.netdev.check() }

func (h *upgradedHost) connections() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.processes {
		all = append(all, tcpEndpoints(p.stack.Netstack())...)
	}
	return all
}

func (h *upgradedHost) down() error {
	h.cancel()
	h.waiting.Wait()
	var errs []error
	h.mu.Lock()
	processes := h.processes
	h.mu.Unlock()
	for _, p := range processes {
		errs = append(errs, p.stack.Close())
		h.past = sum(h.past, p.stack.LinkStats())
	}
	h.port.connect(nil)
	return errors.Join(append(errs, h.checkLinks())...)
}

// checkLinks checks that the links of all processes, which have ended, know of each frame that the
// sockets have given them, and of each that one of them held back, or gave another, and of each
// that they gave the sockets.
func (h *upgradedHost) checkLinks() error {
	if raceDetector {
		return nil
	}
	sockets := h.netdev.counts()
	if sockets.Posted != h.past.Packet.TxFrames {
		return fmt.Errorf("the links have posted %d frames, packet sockets got %d",
			h.past.Packet.TxFrames, sockets.Posted)
	}
	return errors.Join(linkReceived(&h.past, sockets.Received+h.past.RxSentAway),
		linkSent(&h.past, h.port.inspect.syns.again))
}

// sum adds counters.
func sum[T any](a, b T) T {
	add(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem())
	return a
}

func add(a, b reflect.Value) {
	for i := range a.NumField() {
		if f := a.Field(i); f.Kind() == reflect.Struct {
			add(f, b.Field(i))
		} else {
			f.SetUint(f.Uint() + b.Field(i).Uint())
		}
	}
}

func (h *upgradedHost) left() error { return errors.Join(h.netdev.left(), h.clock.left()) }
