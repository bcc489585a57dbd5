package handover

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
func (m *Handover) canHandOver() error {
	switch {
	case m.stack.Link() == nil:
		return errNoSteering
	case m.kernel.Load() != nil:
		return errKernelHas
	}
	return nil
}

// HandOver waits on l for another process that takes this one's place, see Stack.HandOver.
func (m *Handover) HandOver(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	if err := m.canHandOver(); err != nil {
		return err
	}
	if p := m.other.Load(); p != nil {
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
		if m.handOverTo(ctx, conn) {
			return nil
		}
		if err := m.canHandOver(); err != nil {
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
func (m *Handover) handOverTo(ctx context.Context, conn net.Conn) bool {
	p, err := newPeer(conn)
	if err != nil {
		return false
	}
	leave, err := m.stack.Enter() // Close finds the peer, or nobody becomes one
	if err != nil {
		conn.Close()
		return false
	}
	m.other.Store(p)
	leave()
	in := m.stack.Link().NewInjector()
	stop := context.AfterFunc(ctx, func() { p.close() })
	err = m.checkGreeting(p)
	if err == nil {
		err = m.giveUpClients(ctx, p, in)
	}
	if err == nil && stop() {
		go m.serveSuccessor(p, in)
		return true
	}
	stop()
	m.partSuccessor(p, in)
	m.notTaken(ctx, err)
	return false
}

// notTaken logs why another process did not take over, unless it only looked, or has changed its
// mind.
func (m *Handover) notTaken(ctx context.Context, err error) {
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil && !m.stack.Closed() {
		m.env.Log.Warn("another process did not take over", "interface", m.env.Name, "reason", err)
	}
}

// checkGreeting reads the first message of another process, and refuses that of another version.
func (m *Handover) checkGreeting(p *peer) error {
	p.conn.SetReadDeadline(m.env.Clock.Now().Add(answerTime))
	kind, body, err := p.receive()
	if err != nil {
		return err
	}
	var wanted int
	if err := (peerMessage{kind, body}).decode(msgHello, &wanted); err != nil {
		return err
	}
	if wanted != version {
		return fmt.Errorf("it wants version %d of the hand-over, this is %d", wanted, version)
	}
	return nil
}

// giveUpClients tells a newcomer what it has to know, and keeps nothing but the connections that
// there are once it asks for that. It returns nil when new clients are the newcomer's.
func (m *Handover) giveUpClients(ctx context.Context, p *peer, in *rdma.Injector) error {
	flows := new(rdma.Flows)
	m.stack.Link().Steer(&rdma.Steering{Share: rdma.ShareNote, Flows: flows, Relay: p.relayFrame})
	host := m.stack.Ports()
	if host != nil {
		if err := p.sendPorts(host); err != nil {
			return err
		}
	}
	if err := p.send(msgState, state{Version: version, PID: os.Getpid(),
		MAC: m.stack.HardwareAddr().String(), Addresses: m.stack.Addrs(),
		Backend: m.stack.Link().Backend().String(), Host: host != nil,
		Filter: m.stack.FilterPrefixes()}); err != nil {
		return err
	}
	p.conn.SetReadDeadline(time.Time{})
	p.start(func(_ byte, frame []byte) { in.Relayed(frame) })
	var ports []uint16
	if err := p.await(ctx, msgTake, &ports); err != nil {
		return err
	}
	keep := &rdma.Steering{Share: rdma.ShareKeep, Flows: flows, Ports: map[uint16]bool{},
		Send: func(frame []byte) bool { return p.try(msgFrame, frame) }, Relay: p.relayFrame}
	for _, port := range ports {
		keep.Ports[port] = true
	}
	m.await(m.stack.Link().Settled()) // the newcomer has dropped what the queues hold
	m.stack.Link().Steer(keep)
	if err := m.workedOff(); err != nil { // and nothing is noted any more
		return errors.Join(err, p.send(msgRefused, err.Error()))
	}
	m.addFlows(flows)
	for some := range slices.Chunk(flows.All(), flowsPerMessage) {
		message := make([]flow, len(some))
		for i, f := range some {
			message[i] = fromFlow(f)
		}
		if err := p.send(msgFlows, message); err != nil {
			return err
		}
	}
	if host != nil {
		host.Pause()
	}
	if err := p.send(msgTaken, nil); err != nil {
		return err
	}
	return p.await(ctx, msgMine, nil)
}

// workedOff is workOff, and keeps Close out meanwhile.
func (m *Handover) workedOff() error {
	leave, err := m.stack.Enter()
	if err != nil {
		return err
	}
	defer leave()
	return m.workOff()
}

// await waits for the link's workers, up to settleTime, and says whether they are done.
func (m *Handover) await(reached <-chan struct{}) bool {
	limit := m.env.Clock.NewTimer(settleTime)
	defer limit.Stop()
	select {
	case <-reached:
		return true
	case <-limit.C:
	case <-m.stack.Done():
	}
	return false
}

// serveSuccessor waits until the successor ends, or we do.
func (m *Handover) serveSuccessor(p *peer, in *rdma.Injector) {
	for range p.messages {
	}
	if !m.stack.Closed() {
		m.env.Log.Warn("the process that took over has ended", "interface", m.env.Name)
	}
	m.partSuccessor(p, in)
}

// partSuccessor ends what there is with a successor: all frames are ours, unless we end, when what
// is not for our connections stays the successor's to answer.
func (m *Handover) partSuccessor(p *peer, in *rdma.Injector) {
	p.stop()
	if leave, err := m.stack.Enter(); err == nil {
		m.stack.Link().Steer(nil)
		if host := m.stack.Ports(); host != nil && !m.stack.Draining() {
			host.Resume()
		}
		leave()
	}
	in.Close()
	m.other.Store(nil)
	close(p.ended)
}

// EndSuccessor ends what there is with a successor, once the link is gone: it is silent until then
// about what is ours.
func (m *Handover) EndSuccessor() {
	if p := m.other.Load(); p != nil {
		p.close()
		<-p.ended
	}
}
