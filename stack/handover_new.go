package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Predecessor is a process whose place this one is about to take.
type Predecessor struct {
	// PID is its process.
	PID int
	// MAC and Addresses are what its stack has.
	MAC       net.HardwareAddr
	Addresses []netip.Prefix

	peer *peer
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
	if err = p.send(msgHello, handoverVersion); err == nil {
		err = p.expect(msgState, &state) // once its own predecessor has ended
	}
	mac, wrong := net.ParseMAC(state.MAC)
	if err = errors.Join(err, ctx.Err()); err == nil {
		err = wrong
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("meet the process to take over from: %w", err),
			conn.Close())
	}
	return &Predecessor{PID: state.PID, MAC: mac, Addresses: state.Addresses, peer: p}, nil
}

// Close leaves the predecessor alone, unless a stack has taken over from it. It may be called
// again.
func (p *Predecessor) Close() error {
	if err := p.peer.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// adopt makes cfg that of a stack that takes its predecessor's place.
func (c *Config) adopt() {
	if p := c.Predecessor; p != nil {
		c.NIC.MAC = p.MAC
		c.DuplicateDetection = -1 // somebody has the addresses
	}
}

// join has the link take only what is for its own sockets.
func (s *Stack) join(link *rdma.Endpoint) error {
	if s.cfg.Predecessor == nil {
		return nil
	}
	if s.packets == nil {
		return errNoSteering
	}
	link.Steer(&rdma.Steering{Share: rdma.ShareWatch})
	return nil
}

// TakeOver has the stack receive all new clients in place of Config.Predecessor's, which finishes
// the connections that it has. Listen first. If the predecessor has ended meanwhile there is
// nothing to take over, and all frames are ours. Without a predecessor TakeOver does nothing. Call
// it once.
func (s *Stack) TakeOver(ctx context.Context) error {
	if s.cfg.Predecessor == nil {
		return nil
	}
	t := &taking{s: s, p: s.cfg.Predecessor.peer, flows: new(rdma.Flows)}
	s.live.RLock()
	err := s.done()
	if err == nil {
		s.other.Store(t.p)
	}
	s.live.RUnlock()
	if err != nil {
		return err
	}
	t.in = s.link.NewInjector()
	stop := context.AfterFunc(ctx, func() { t.p.conn.SetReadDeadline(time.Unix(1, 0)) })
	err = t.take()
	if !stop() && ctx.Err() != nil {
		t.end()
		return fmt.Errorf("take over from process %d: %w", s.cfg.Predecessor.PID, ctx.Err())
	}
	if err != nil {
		s.log.Warn("the process to take over from has ended", "interface", s.name, "reason", err)
		t.end()
		return nil
	}
	go t.serve()
	return nil
}

// taking is what there is with a predecessor.
type taking struct {
	s     *Stack
	p     *peer
	in    *rdma.Injector
	flows *rdma.Flows // the predecessor's
	held  heldFrames
	given [][]byte // frames that came before taken
}

// take is the change, at the end of which new clients are ours.
func (t *taking) take() error {
	t.s.link.Steer(&rdma.Steering{Share: rdma.ShareWatch, Send: t.held.add})
	if err := t.p.send(msgTake, t.s.unconnectedPorts()); err != nil {
		return err
	}
	for {
		kind, body, err := t.p.receive()
		if err != nil {
			return err
		}
		switch kind {
		case msgFlows:
			var some []handoverFlow
			if err := json.Unmarshal(body, &some); err != nil {
				return err
			}
			for _, f := range some {
				t.flows.Add(f.link())
			}
		case msgFrame:
			t.given = append(t.given, slices.Clone(body))
		case msgTaken:
			t.s.link.Steer(&rdma.Steering{Share: rdma.ShareTake, Flows: t.flows})
			t.release()
			return t.p.send(msgMine, nil)
		}
	}
}

// release delivers what was held back as far as it is ours, and what we were given meanwhile.
func (t *taking) release() {
	t.s.await(t.s.link.Between()) // nothing is held back any more
	t.in.Deliver(t.held.all())
	for _, frame := range t.given {
		t.in.Give(frame)
	}
	t.given = nil
}

// serve delivers what the predecessor gives us, until either ends.
func (t *taking) serve() {
	for {
		kind, body, err := t.p.receive()
		if err != nil {
			break
		}
		if kind == msgFrame {
			t.in.Give(body)
		}
	}
	if !t.s.closed.Load() {
		t.s.log.Info("the process taken over from has ended", "interface", t.s.name)
	}
	t.end()
}

// end has all frames be ours, among them those that are held back.
func (t *taking) end() {
	t.p.conn.Close()
	if !t.s.closed.Load() {
		t.s.link.Steer(nil)
		t.release()
	}
	t.in.Close()
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
	if p := s.cfg.Predecessor; p != nil {
		p.Close()
		if s.other.Load() == p.peer {
			<-p.peer.ended
		}
	}
}
