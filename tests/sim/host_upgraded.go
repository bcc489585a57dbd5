package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// upgradedHost is package stack in a process in whose place others come: on the rings of its card,
// or over packet sockets of a netdev where other hosts of ours have a slot with a card.
type upgradedHost struct {
	*ourHost
	now    *ticker
	ctx    context.Context // ends when the host goes down
	cancel context.CancelFunc

	upgrading sync.Mutex // held by the upgrade under way

	mu        sync.Mutex // covers what follows
	processes []*process // those that have not ended, the oldest first
	serving   []*process // those of them that listen
	clients   *process   // the one that gets new clients, and dials
	started   int
	sockets   []served // of the host
	past      past     // of processes that have ended
	waiting   sync.WaitGroup
}

// past is what processes that have ended have sent and received: their links, the queues of their
// devices, and the connections with each other.
type past struct {
	links          rdma.Stats
	received, sent uint64
	inPlace        uint64
	meetings       []*meeting
}

// served is a socket of the host.
type served interface {
	serve(p *process) error
	remove(p *process) error
}

func newUpgradedHost(h *ourHost, n *network) *upgradedHost {
	if !h.plan.Rings {
		h.netdev = &netdev{plan: h.plan.Netdev, name: fmt.Sprint("eth", h.index), mtu: h.mtu,
			port: h.port, clock: n.clock, put: h.port.put}
	}
	u := &upgradedHost{ourHost: h, now: n.clock}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	return u
}

func (h *upgradedHost) up(ctx context.Context) error {
	defer close(h.opened)
	if h.netdev != nil {
		h.port.connect(h.netdev.receive)
	} else {
		h.busy.Add(1)
		err := h.insert(h.plan.Card)
		h.busy.Add(-1)
		if err != nil {
			return err
		}
	}
	p, err := h.start(ctx, nil)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients, h.serving = p, []*process{p}
	return nil
}

// newest is the process that gets new clients.
func (h *upgradedHost) newest() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients
}

// upgrade has a new process take the place of the newest, which is killed if the plan says so.
func (h *upgradedHost) upgrade(t *task, f FaultPlan) error {
	t.calls("wait for the upgrade before")
	t.be(true)
	h.upgrading.Lock()
	t.be(false)
	old, err := h.takeOver(t, f)
	h.upgrading.Unlock()
	if err != nil {
		return err
	}
	t.w.logf("%s: a new process gets the clients", t.name)
	t.calls("wait for the end of HandOver")
	if err := <-old.handed; err != nil && !old.killed.Load() {
		return fmt.Errorf("hand over: %w", err)
	}
	if err := h.retire(t, old); err != nil && !old.killed.Load() {
		return err
	}
	t.calls("wait for the end of a process")
	<-old.over
	return nil
}

// takeOver starts a process that gets all new clients.
func (h *upgradedHost) takeOver(t *task, f FaultPlan) (old *process, err error) {
	old = h.newest()
	for range f.Count {
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
	if f.Kill > 0 {
		t.w.clock.AfterFunc(f.Kill, func() { h.kill(t.w, old) })
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
)

// retire ends a process when it has no connection left.
func (h *upgradedHost) retire(t *task, p *process) error {
	t.calls("drain")
	var left *stack.DrainError
	switch err := p.stack.Drain(h.ctx); {
	case errors.As(err, &left) && errors.Is(err, os.ErrDeadlineExceeded):
		t.w.logf("%s: handshakes did not end: %v", t.name, err)
		t.w.cutHandshakes()
	case err != nil:
		return fmt.Errorf("drain: %w", err)
	}
	if h.plan.Memory.Cookies { // Drain knows of no handshakes then
		t.sleep(2 * t.w.plan.Net.slowest(h.plan.Late))
	}
	errs := []error{h.leave(p)}
	end := func() error { return p.stack.Shutdown(h.ctx) }
	if h.finish(t, p); p.stack.Conns() > 0 {
		end = p.stack.Close
	}
	p.abort()
	t.calls("shut a process down")
	return errors.Join(append(errs, h.end(p, end))...)
}

// leave has a process listen no longer.
func (h *upgradedHost) leave(p *process) error {
	h.mu.Lock()
	h.serving = slices.DeleteFunc(h.serving, func(o *process) bool { return o == p })
	sockets := slices.Clone(h.sockets)
	h.mu.Unlock()
	var errs []error
	for _, s := range sockets {
		errs = append(errs, s.remove(p))
	}
	return errors.Join(errs...)
}

// finish waits until a process has no connection left, or none but those whose peer does not answer
// any more.
func (h *upgradedHost) finish(t *task, p *process) {
	t.calls("wait for the last connection")
	t.be(true)
	defer t.be(false)
	for !p.idle() && t.w.clock.now() < t.w.calm+lastLimit {
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

func (h *upgradedHost) check() error {
	if h.netdev != nil {
		return h.netdev.check()
	}
	errs := []error{h.checkCard()}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.processes {
		if !p.killed.Load() {
			errs = append(errs, p.books.check(p.stack))
		}
	}
	return errors.Join(errs...)
}

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
	h.mu.Lock()
	processes := slices.Clone(h.processes)
	h.mu.Unlock()
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.settled(), h.end(p, p.stack.Close))
	}
	if h.netdev != nil {
		h.port.connect(nil)
	} else {
		errs = append(errs, h.slot.card().Close())
	}
	return errors.Join(append(errs, h.checkLinks())...)
}

// checkLinks checks that the links of all processes, which have ended, know of each frame that the
// sockets, or queues, have given them, and of each that one of them held back, or gave another, and
// of each that they gave the sockets or queues.
func (h *upgradedHost) checkLinks() error {
	if racing.Detector {
		return nil
	}
	received, sent := h.past.received, h.past.sent
	if h.netdev != nil {
		sockets := h.netdev.counts()
		received, sent = sockets.Received, sockets.Posted
	}
	if n := h.past.links.Packet.TxFrames + h.past.links.Rings.TxFrames; sent != n {
		return fmt.Errorf("the links have posted %d frames, packet sockets or rings got %d", n,
			sent)
	}
	s := &h.past.links
	received += s.RxSentAway + s.RxACKsLate + s.TxGivenUp
	return errors.Join(linkReceived(s, received-h.past.unread(), received), linkSent(s))
}

// outOfBuffer returns that of all processes. One that was killed told nobody, but its NIC.
func (h *upgradedHost) outOfBuffer() uint64 {
	if h.netdev == nil {
		return h.slot.card().Counters().Drops.OutOfBuffer
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.past.links.RxOutOfBuffer
	for _, p := range h.processes {
		n += p.stack.LinkStats().RxOutOfBuffer
	}
	return n
}

func (h *upgradedHost) inPlace() uint64 { return h.past.inPlace }

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

func (h *upgradedHost) left() error {
	if h.netdev != nil {
		return errors.Join(h.netdev.left(), h.clock.left())
	}
	return h.ourHost.left()
}
