package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// settleTime says how long the link's workers may take to find their queues empty. Beyond it those
// are never empty, and datagrams that they hold may be lost; TCP sends again.
const settleTime = time.Second

// errKernelHas is of a stack whose ports the kernel serves.
var errKernelHas = errors.New("the ports have been handed over to the kernel")

// errNoSteering is of a stack whose link knows no other process.
var errNoSteering = errors.New("a hand-over needs a link that Open has made")

// canHandOver says why the stack can neither hand over nor take over, or nil.
func (s *Stack) canHandOver() error {
	switch {
	case s.link == nil:
		return errNoSteering
	case s.kernel.Load() != nil:
		return errKernelHas
	}
	return nil
}

// HandOver waits on l, a listener of network unixpacket that only we may connect to, for another
// process that takes this one's place ([MeetPredecessor]), and returns nil once that receives all
// new clients. What is to be done then is what [Stack.Drain] says; connections that there are go
// on. A stack that has itself taken over lets its predecessor end first. HandOver closes l, whose
// connections may each be a [MessageConn] as well. Other errors than ctx's mean that nobody can
// take over any more.
func (s *Stack) HandOver(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	if err := s.canHandOver(); err != nil {
		return err
	}
	if p := s.other.Load(); p != nil {
		select {
		case <-p.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), closed(conn))
		}
		if err != nil {
			return fmt.Errorf("wait for a process that takes over: %w", err)
		}
		if s.handOverTo(ctx, conn) {
			return nil
		}
		if err := s.canHandOver(); err != nil {
			return err
		}
	}
}

func closed(conn net.Conn) error {
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// handOverTo reports whether the process behind conn has taken over. If so, its connection is
// served until either ends.
func (s *Stack) handOverTo(ctx context.Context, conn net.Conn) bool {
	p, err := newPeer(conn)
	if err != nil {
		return false
	}
	s.live.RLock() // Close finds the peer, or nobody becomes one
	ended := s.closed.Load()
	if !ended {
		s.other.Store(p)
	}
	s.live.RUnlock()
	if ended {
		conn.Close()
		return false
	}
	in := s.link.NewInjector()
	stop := context.AfterFunc(ctx, func() { p.close() })
	err = s.checkGreeting(p)
	if err == nil {
		err = s.giveUpClients(ctx, p, in)
	}
	if err == nil && stop() {
		go s.serveSuccessor(p, in)
		return true
	}
	stop()
	s.partSuccessor(p, in)
	s.notTaken(ctx, err)
	return false
}

// notTaken logs why another process did not take over, unless it only looked, or has changed its
// mind.
func (s *Stack) notTaken(ctx context.Context, err error) {
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil && !s.closed.Load() {
		s.log.Warn("another process did not take over", "interface", s.name, "reason", err)
	}
}

// checkGreeting reads the first message of another process, and refuses that of another version.
func (s *Stack) checkGreeting(p *peer) error {
	p.conn.SetReadDeadline(s.clock.Now().Add(handoverTime))
	kind, body, err := p.receive()
	if err != nil {
		return err
	}
	var version int
	if err := (peerMessage{kind, body}).decode(msgHello, &version); err != nil {
		return err
	}
	if version != handoverVersion {
		return fmt.Errorf("it wants version %d of the hand-over, this is %d", version,
			handoverVersion)
	}
	return nil
}

// giveUpClients tells a newcomer what it has to know, and keeps nothing but the connections that
// there are once it asks for that. It returns nil when new clients are the newcomer's.
func (s *Stack) giveUpClients(ctx context.Context, p *peer, in *rdma.Injector) error {
	flows := new(rdma.Flows)
	s.link.Steer(&rdma.Steering{Share: rdma.ShareNote, Flows: flows, Relay: p.relayFrame})
	if s.host != nil {
		if err := s.host.sendPorts(p); err != nil {
			return err
		}
	}
	if err := p.send(msgState, handoverState{Version: handoverVersion, PID: os.Getpid(),
		MAC: s.HardwareAddr().String(), Addresses: s.Addrs(),
		Backend: s.link.Backend().String(), Host: s.host != nil}); err != nil {
		return err
	}
	p.conn.SetReadDeadline(time.Time{})
	p.start(func(_ byte, frame []byte) { in.Relayed(frame) })
	var ports []uint16
	if err := p.await(ctx, msgTake, &ports); err != nil {
		return err
	}
	keep := &rdma.Steering{Share: rdma.ShareKeep, Flows: flows, Ports: map[uint16]bool{},
		Send: p.sendFrame, Relay: p.relayFrame}
	for _, port := range ports {
		keep.Ports[port] = true
	}
	s.await(s.link.Settled()) // the newcomer has dropped what the queues hold
	s.link.Steer(keep)
	if err := s.workedOff(); err != nil { // and nothing is noted any more
		return errors.Join(err, p.send(msgRefused, err.Error()))
	}
	s.addFlows(flows)
	for some := range slices.Chunk(flows.All(), flowsPerMessage) {
		message := make([]handoverFlow, len(some))
		for i, f := range some {
			message[i] = fromFlow(f)
		}
		if err := p.send(msgFlows, message); err != nil {
			return err
		}
	}
	if s.host != nil {
		s.host.pause()
	}
	if err := p.send(msgTaken, nil); err != nil {
		return err
	}
	return p.await(ctx, msgMine, nil)
}

// workedOff is workOff, and keeps Close out meanwhile.
func (s *Stack) workedOff() error {
	s.live.RLock()
	defer s.live.RUnlock()
	if err := s.done(); err != nil {
		return err
	}
	return s.workOff()
}

// await waits for the link's workers, up to settleTime, and says whether they are done.
func (s *Stack) await(reached <-chan struct{}) bool {
	limit := s.clock.NewTimer(settleTime)
	defer limit.Stop()
	select {
	case <-reached:
		return true
	case <-limit.C:
	case <-s.ended:
	}
	return false
}

// serveSuccessor waits until the successor ends, or we do.
func (s *Stack) serveSuccessor(p *peer, in *rdma.Injector) {
	for range p.messages {
	}
	if !s.closed.Load() {
		s.log.Warn("the process that took over has ended", "interface", s.name)
	}
	s.partSuccessor(p, in)
}

// partSuccessor ends what there is with a successor: all frames are ours, unless we end, when what
// is not for our connections stays the successor's to answer.
func (s *Stack) partSuccessor(p *peer, in *rdma.Injector) {
	p.stop()
	s.live.RLock()
	if !s.closed.Load() {
		s.link.Steer(nil)
		if s.host != nil && !s.draining.Load() {
			s.host.resume()
		}
	}
	s.live.RUnlock()
	in.Close()
	s.other.Store(nil)
	close(p.ended)
}

// endSuccessor ends what there is with a successor, once the link is gone: it is silent until then
// about what is ours.
func (s *Stack) endSuccessor() {
	if p := s.other.Load(); p != nil {
		p.close()
		<-p.ended
	}
}
