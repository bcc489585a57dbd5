package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Predecessor is a process whose place this one is about to take.
type Predecessor struct {
	PID       int // of the process
	MAC       net.HardwareAddr
	Addresses []netip.Prefix

	backend string // of rdma.BackendKind, which its stack is on
	host    bool
	// Filter holds the prefixes of its packet filter, as JSON; nil: none.
	Filter []byte
	// Ports are the sockets that it had, on the host's own addresses.
	Ports Inherited
	peer  *peer
}

// Meet talks to the process at the other end of conn, which goes on as before until
// [Handover.TakeOver]. It owns conn.
func Meet(ctx context.Context, conn net.Conn) (*Predecessor, error) {
	p, err := newPeer(conn)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { p.conn.SetReadDeadline(time.Unix(1, 0)) })()
	var has state
	var ports Inherited
	if err = p.send(msgHello, version); err == nil {
		err = p.expectState(&has, &ports) // once its own predecessor has ended
	}
	mac, wrong := net.ParseMAC(has.MAC)
	if err = errors.Join(err, ctx.Err()); err == nil {
		err = wrong
	}
	if err != nil {
		ports.close()
		return nil, errors.Join(fmt.Errorf("meet the process to take over from: %w", err),
			conn.Close())
	}
	return &Predecessor{PID: has.PID, MAC: mac, Addresses: has.Addresses, peer: p,
		host: has.Host, Filter: has.Filter, Ports: Inherited{fds: ports.fds},
		backend: cmp.Or(has.Backend, rdma.BackendPacket.String())}, nil
}

// Close leaves the predecessor alone, unless a stack has taken over from it. It may be called
// again.
func (p *Predecessor) Close() error {
	p.Ports.close()
	return p.peer.close()
}

// expectState waits for the state, and takes what comes before it.
func (p *peer) expectState(has *state, ports *Inherited) error {
	for {
		m, fds, err := p.receiveWith()
		if err != nil {
			return err
		}
		if m.kind != msgPorts {
			closeFDs(fds)
			return m.decode(msgState, has)
		}
		if err := ports.add(m.body, fds); err != nil {
			return err
		}
	}
}

// Join makes the link, which the stack is about to be on, take only what is for its own sockets.
// device is what it was opened on; nil on packet sockets.
func (m *Handover) Join(link *rdma.Endpoint, device *dv.Device) error {
	p := m.predecessor
	if p == nil {
		return nil
	}
	if p.host != (m.stack.Ports() != nil) {
		return fmt.Errorf("of process %d and this one, one serves on the host's own addresses "+
			"(Host): give both the same address", p.PID)
	}
	if have := link.Backend().String(); have != p.backend {
		return fmt.Errorf("process %d serves on %s, and this one would on %s: give both the same "+
			"Backend, and wait until the device of either is there", p.PID, p.backend, have)
	}
	t := &taking{m: m, p: p.peer, in: link.NewInjector(), flows: new(rdma.Flows), device: device}
	m.taking = t
	m.other.Store(t.p)
	link.Steer(&rdma.Steering{Share: rdma.ShareWatch})
	t.p.start(t.frame)
	return nil
}

// TakeOver does what Stack.TakeOver says.
func (m *Handover) TakeOver(ctx context.Context) error {
	t := m.taking
	if t == nil {
		return nil
	}
	leave, err := m.stack.Enter()
	if err != nil {
		return err
	}
	t.begun = true // what ends is ours to end
	leave()
	err = t.take(ctx)
	_, refused := errors.AsType[refusedError](err)
	switch {
	case err == nil:
		go t.serve()
		return nil
	case refused || ctx.Err() != nil || errors.Is(err, unix.EADDRINUSE):
		t.leave()
		return fmt.Errorf("take over from process %d: %w", m.predecessor.PID, err)
	}
	m.env.Log.Warn("the process to take over from has ended", "interface", m.env.Name, "reason",
		err)
	t.end()
	return nil
}

// taking holds what there is with a predecessor.
type taking struct {
	m     *Handover
	p     *peer
	in    *rdma.Injector
	flows *rdma.Flows // the predecessor's
	held  heldFrames
	begun bool // by TakeOver; written before the stack is closed

	mu     sync.Mutex
	taken  bool       // guarded by mu, as is what follows: new clients are ours
	given  [][]byte   // frames that came before
	device *dv.Device // that was opened last; nil on packet sockets
	rules  RuleState
}

// frame delivers one that the predecessor sends.
func (t *taking) frame(kind byte, frame []byte) {
	if kind == msgRelay {
		t.in.Relayed(frame)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.taken {
		t.given = append(t.given, slices.Clone(frame))
		return
	}
	t.in.Give(frame)
}

// take returns the change, at the end of which new clients are ours.
func (t *taking) take(ctx context.Context) error {
	t.m.stack.Link().Steer(&rdma.Steering{Share: rdma.ShareWatch, Send: t.held.add,
		Relay: t.p.relayFrame})
	if err := t.setRules(RulesAhead); err != nil {
		return err
	}
	if err := t.p.send(msgTake, t.m.stack.UnconnectedPorts()); err != nil {
		return err
	}
	for {
		m, err := t.p.next(ctx)
		if err != nil {
			return err
		}
		if err := m.refusal(); err != nil {
			return err
		}
		if m.kind == msgTaken {
			break
		}
		var some []flow
		if err := m.decode(msgFlows, &some); err != nil {
			return err
		}
		for _, f := range some {
			t.flows.Add(f.link())
		}
	}
	t.m.stack.Link().Steer(&rdma.Steering{Share: rdma.ShareTake, Flows: t.flows,
		Relay: t.p.relayFrame})
	t.release()
	return t.p.send(msgMine, nil)
}

// release delivers what was held back as far as it is ours, and what we were given meanwhile.
func (t *taking) release() {
	if h := t.m.stack.Ports(); h != nil {
		if err := h.ServeInherited(); err != nil {
			t.m.env.Log.Warn("the kernel does not serve at ports of ours", "interface",
				t.m.env.Name,
				"error", err)
		}
	}
	t.m.await(t.m.stack.Link().Between()) // nothing is held back any more
	t.in.Deliver(t.held.all())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = true
	for _, frame := range t.given {
		t.in.Give(frame)
	}
	t.given = nil
}

// serve waits until the predecessor ends, or we do.
func (t *taking) serve() {
	for range t.p.messages {
	}
	if !t.m.stack.Closed() {
		t.m.env.Log.Info("the process taken over from has ended", "interface", t.m.env.Name)
	}
	t.end()
}

// end has all frames be ours, among them those that are held back.
func (t *taking) end() {
	t.p.stop()
	if !t.m.stack.Closed() {
		if err := t.setRules(RulesAhead); err != nil {
			t.m.env.Log.Warn("frames do not come here", "interface", t.m.env.Name, "error", err)
		}
		t.m.stack.Link().Steer(nil)
		t.release()
	}
	go func() {
		t.settle()
		t.leave()
	}()
}

// leave ends what there is with the predecessor.
func (t *taking) leave() {
	t.p.stop()
	t.in.Close()
	t.m.predecessor.Ports.close()
	t.m.other.Store(nil)
	close(t.p.ended)
}

// maxHeld bounds what is held back, in bytes.
const maxHeld = 4 << 20

// heldFrames are frames that are held back, in the form that rdma.Injector takes.
type heldFrames struct {
	mu     sync.Mutex
	frames []byte
}

// add is rdma.Steering's Send.
func (h *heldFrames) add(frame []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.frames)+len(frame) > maxHeld {
		return false
	}
	h.frames = append(h.frames, frame...)
	return true
}

// all returns the frames, and holds none any more.
func (h *heldFrames) all() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	frames := h.frames
	h.frames = nil
	return frames
}

// PartPredecessor ends what there is with a predecessor, before the link goes.
func (m *Handover) PartPredecessor() {
	t := m.taking
	if t == nil {
		if p := m.predecessor; p != nil {
			p.Close()
		}
		return
	}
	t.p.close()
	if !t.begun {
		t.leave()
	}
	<-t.p.ended
}

// RuleState says where the rules of a newcomer's device are. Another device inherits it once the
// first is lost.
type RuleState uint8

const (
	RulesAway    RuleState = iota // there are none
	RulesAhead                    // of the predecessor's
	RulesSettled                  // in their places
)

// setRules moves the rules on. A device that has failed needs none: its successor gets them.
func (t *taking) setRules(to RuleState) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rules >= to {
		return nil
	}
	if err := to.apply(t.device); err != nil {
		return err
	}
	if h := t.m.stack.Ports(); h != nil {
		if err := h.MoveRules(to); err != nil {
			return err
		}
	}
	t.rules = to
	return nil
}

func (r RuleState) apply(dev *dv.Device) error {
	if dev == nil || r == RulesAway {
		return nil
	}
	err := dev.TakeOver()
	if err == nil && r == RulesSettled {
		err = dev.Settle()
	}
	if dev.Err() != nil {
		return nil
	}
	return err
}

// UseDevice gives a device that was opened the rules of the one before.
func (m *Handover) UseDevice(dev *dv.Device) error {
	t := m.taking
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.device = dev
	return t.rules.apply(dev)
}

// settlePause says how often it is tried to take the places of the predecessor's rules: the kernel
// may still be at work on its end.
const settlePause = 20 * time.Millisecond

// settle puts the rules where the predecessor's were, once these are gone, or until the stack ends.
func (t *taking) settle() {
	for !t.m.stack.Closed() {
		err := t.setRules(RulesSettled)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			t.m.env.Log.Warn("rules stay ahead of their places", "interface", t.m.env.Name,
				"error", err)
			return
		}
		if t.m.env.Clock.Sleep(t.m.env.Ctx, settlePause) != nil {
			return
		}
	}
}
