package stack

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
	// PID is its process.
	PID int
	// MAC and Addresses are what its stack has.
	MAC       net.HardwareAddr
	Addresses []netip.Prefix

	backend string // of rdma.BackendKind, which its stack is on
	host    bool
	ports   inherited // with host
	peer    *peer
}

// MeetPredecessor connects to the unix socket on which another process waits in [Stack.HandOver].
// That goes on as before until [Stack.TakeOver]; give the result to [Open] as Config.Predecessor,
// or close it.
func MeetPredecessor(ctx context.Context, path string) (*Predecessor, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("meet the process to take over from: %w", err)
	}
	return MeetPredecessorOn(ctx, conn)
}

// MeetPredecessorOn is [MeetPredecessor] over a connection that is there already: one of network
// unixpacket, or a [MessageConn]. It owns conn.
func MeetPredecessorOn(ctx context.Context, conn net.Conn) (*Predecessor, error) {
	p, err := newPeer(conn)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { p.conn.SetReadDeadline(time.Unix(1, 0)) })()
	var state handoverState
	var ports inherited
	if err = p.send(msgHello, handoverVersion); err == nil {
		err = p.expectState(&state, &ports) // once its own predecessor has ended
	}
	mac, wrong := net.ParseMAC(state.MAC)
	if err = errors.Join(err, ctx.Err()); err == nil {
		err = wrong
	}
	if err != nil {
		ports.close()
		return nil, errors.Join(fmt.Errorf("meet the process to take over from: %w", err),
			conn.Close())
	}
	return &Predecessor{PID: state.PID, MAC: mac, Addresses: state.Addresses, peer: p,
		host: state.Host, ports: inherited{fds: ports.fds},
		backend: cmp.Or(state.Backend, rdma.BackendPacket.String())}, nil
}

// Close leaves the predecessor alone, unless a stack has taken over from it. It may be called
// again.
func (p *Predecessor) Close() error {
	p.ports.close()
	return p.peer.close()
}

// expectState waits for the state, and takes what comes before it.
func (p *peer) expectState(state *handoverState, ports *inherited) error {
	for {
		m, fds, err := p.receiveWith()
		if err != nil {
			return err
		}
		if m.kind != msgPorts {
			closeFDs(fds)
			return m.decode(msgState, state)
		}
		if err := ports.add(m.body, fds); err != nil {
			return err
		}
	}
}

// adopt makes cfg that of a stack that takes its predecessor's place.
func (c *Config) adopt() {
	if p := c.Predecessor; p != nil {
		c.NIC.MAC, c.NIC.TakesOver = p.MAC, true
		c.DuplicateDetection = -1 // somebody has the addresses
	}
}

// join has the link take only what is for its own sockets.
func (s *Stack) join(link *rdma.Endpoint) error {
	p := s.cfg.Predecessor
	if p == nil {
		return nil
	}
	if p.host != (s.host != nil) {
		return fmt.Errorf("of process %d and this one, one serves on the host's own addresses "+
			"(Host): give both the same address", p.PID)
	}
	if have := link.Backend().String(); have != p.backend {
		return fmt.Errorf("process %d serves on %s, and this one would on %s: give both the same "+
			"Backend, and wait until the device of either is there", p.PID, p.backend, have)
	}
	t := &taking{s: s, p: p.peer, in: link.NewInjector(), flows: new(rdma.Flows),
		device: s.uplink.FirstDevice()}
	s.taking = t
	s.other.Store(t.p)
	link.Steer(&rdma.Steering{Share: rdma.ShareWatch})
	t.p.start(t.frame)
	return nil
}

// TakeOver has the stack receive all new clients in place of Config.Predecessor's, which finishes
// the connections that it has. Listen first. If the predecessor has ended meanwhile there is
// nothing to take over, and all frames are ours. After an error, for instance as the predecessor
// refuses and goes on as before, the stack is of no use, and is to be closed. Without a predecessor
// TakeOver does nothing. Call it once.
func (s *Stack) TakeOver(ctx context.Context) error {
	t := s.taking
	if t == nil {
		return nil
	}
	s.live.RLock()
	err := s.done()
	if err == nil {
		t.begun = true // what ends is ours to end
	}
	s.live.RUnlock()
	if err != nil {
		return err
	}
	err = t.take(ctx)
	_, refused := errors.AsType[refusedError](err)
	switch {
	case err == nil:
		go t.serve()
		return nil
	case refused || ctx.Err() != nil || errors.Is(err, unix.EADDRINUSE):
		t.leave()
		return fmt.Errorf("take over from process %d: %w", s.cfg.Predecessor.PID, err)
	}
	s.log.Warn("the process to take over from has ended", "interface", s.name, "reason", err)
	t.end()
	return nil
}

// taking holds what there is with a predecessor.
type taking struct {
	s     *Stack
	p     *peer
	in    *rdma.Injector
	flows *rdma.Flows // the predecessor's
	held  heldFrames
	begun bool // by TakeOver; written before the stack is closed

	mu     sync.Mutex
	taken  bool       // guarded by mu, as is what follows: new clients are ours
	given  [][]byte   // frames that came before
	device *dv.Device // that was opened last; nil on packet sockets
	rules  ruleState
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
	t.s.link.Steer(&rdma.Steering{Share: rdma.ShareWatch, Send: t.held.add, Relay: t.p.relayFrame})
	if err := t.setRules(rulesAhead); err != nil {
		return err
	}
	if err := t.p.send(msgTake, t.s.unconnectedPorts()); err != nil {
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
		var some []handoverFlow
		if err := m.decode(msgFlows, &some); err != nil {
			return err
		}
		for _, f := range some {
			t.flows.Add(f.link())
		}
	}
	t.s.link.Steer(&rdma.Steering{Share: rdma.ShareTake, Flows: t.flows, Relay: t.p.relayFrame})
	t.release()
	return t.p.send(msgMine, nil)
}

// release delivers what was held back as far as it is ours, and what we were given meanwhile.
func (t *taking) release() {
	if h := t.s.host; h != nil {
		if err := h.serveInherited(); err != nil {
			t.s.log.Warn("the kernel does not serve at ports of ours", "interface", t.s.name,
				"error", err)
		}
	}
	t.s.await(t.s.link.Between()) // nothing is held back any more
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
	if !t.s.closed.Load() {
		t.s.log.Info("the process taken over from has ended", "interface", t.s.name)
	}
	t.end()
}

// end has all frames be ours, among them those that are held back.
func (t *taking) end() {
	t.p.stop()
	if !t.s.closed.Load() {
		if err := t.setRules(rulesAhead); err != nil {
			t.s.log.Warn("frames do not come here", "interface", t.s.name, "error", err)
		}
		t.s.link.Steer(nil)
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
	t.s.cfg.Predecessor.ports.close()
	t.s.other.Store(nil)
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

// partPredecessor ends what there is with a predecessor, before the link goes.
func (s *Stack) partPredecessor() {
	t := s.taking
	if t == nil {
		if p := s.cfg.Predecessor; p != nil {
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
