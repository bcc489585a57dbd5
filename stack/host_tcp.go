package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// kernelQueue is the connections that the kernel has accepted for a listener. Nil is none.
type kernelQueue struct {
	limit int

	mu     sync.Mutex
	room   sync.Cond // there is room, or the queue is closed
	conns  []*net.TCPConn
	closed bool
	first  bool // this queue has the next turn
}

func newKernelQueue(limit int) *kernelQueue {
	q := &kernelQueue{limit: max(limit, 1)}
	q.room.L = &q.mu
	return q
}

// put adds a connection, and waits for room: the others then wait in the kernel.
func (q *kernelQueue) put(c *net.TCPConn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.conns) >= q.limit && !q.closed {
		q.room.Wait()
	}
	if !q.closed {
		q.conns = append(q.conns, c)
	}
	return !q.closed
}

// take returns the oldest connection, or nil.
func (q *kernelQueue) take() *net.TCPConn {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.conns) == 0 {
		return nil
	}
	c := q.conns[0]
	q.conns = q.conns[1:]
	q.room.Signal()
	return c
}

// takeInTurn is take every second time, and nil else: neither the kernel's connections nor
// netstack's keep the others waiting.
func (q *kernelQueue) takeInTurn() *net.TCPConn {
	if q == nil {
		return nil
	}
	if q.first = !q.first; q.first { // guarded by the listener's rd.mu
		return q.take()
	}
	return nil
}

// close resets what has not been accepted.
func (q *kernelQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, c := range q.conns {
		reset(c)
	}
	q.conns = nil
	q.room.Broadcast()
}

// reset closes a connection of the kernel with RST.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // the connection may be over already
	_ = c.Close()
}

// listenOnHost takes the ports of a listener that is bound.
func (l *TCPListener) listenOnHost(bound tcpip.FullAddress) (err error) {
	if l.stack.host == nil {
		return nil
	}
	b := newBinding(backing.TCP, l.family, bound)
	b.listener, l.kernel = l, newKernelQueue(l.backlog)
	l.binding, err = l.stack.host.bound(b)
	return err
}

// acceptPause says how long is waited where there is no descriptor for a connection.
const acceptPause = 10 * time.Millisecond

// acceptFrom hands connections of the kernel to listeners.
func (h *host) acceptFrom(p *hostPort, from *net.TCPListener) {
	for {
		c, err := from.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed), isPaused(err):
			return
		case err != nil:
			if h.stack.clock.Sleep(h.stack.life.ctx, acceptPause) != nil {
				return
			}
			continue
		}
		l := h.nextListener(p)
		if l == nil {
			reset(c)
			continue
		}
		h.accepted.Add(1)
		if err := c.SetKeepAliveConfig(l.keepAlive); err != nil || !l.kernel.put(c) {
			reset(c)
			continue
		}
		l.rd.notify()
	}
}

// nextListener returns the one of p's listeners whose turn it is; nil: none is left.
func (h *host) nextListener(p *hostPort) *TCPListener {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p.users) == 0 {
		return nil
	}
	p.turn++
	p.accepted = true
	return p.users[p.turn%len(p.users)].listener
}

// errByKernel is why DialTCP does not connect.
type errByKernel struct{ to netip.Addr }

func (e errByKernel) Error() string {
	return fmt.Sprintf("the kernel's route to %s does not leave by our netdev, and such a "+
		"connection is a *net.TCPConn: use DialContext", e.to)
}

// refuseKernel refuses what only the kernel reaches. A nil host refuses nothing.
func (h *host) refuseKernel(ip net.IP) error {
	to, _ := netip.AddrFromSlice(ip)
	if to = to.Unmap(); h != nil && h.byKernel(to) {
		return errByKernel{to}
	}
	return nil
}

// holdFor takes the port that a connection is to be made from, if it is a given one. The
// caller gives them to host.dialEnds once there is a connection, or none.
func (h *host) holdFor(laddr *net.TCPAddr) ([]*hostPort, error) {
	if h == nil || laddr == nil || laddr.Port == 0 {
		return nil, nil
	}
	a, _ := netip.AddrFromSlice(laddr.IP)
	if a = a.Unmap(); a.IsUnspecified() {
		a = netip.Addr{}
	}
	return h.hold(a, uint16(laddr.Port))
}

// dialKernel connects by the kernel to what it reaches otherwise than by our netdev.
func (d *Dialer) dialKernel(ctx context.Context, network string, t target) (net.Conn, error) {
	k := keepAlive(d.KeepAlive, d.KeepAliveConfig, *d.stack.cfg.TCP.KeepAlive)
	by := net.Dialer{LocalAddr: d.LocalAddr, KeepAliveConfig: k, FallbackDelay: -1} // t is one
	if !k.Enable {
		by.KeepAlive = -1
	}
	if network[0] == 't' && d.stack.host.silent(netip.AddrPortFrom(t.ip, uint16(t.port))) {
		return nil, &net.OpError{Op: "dial", Net: network, Source: d.LocalAddr, Addr: t.tcp(),
			Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	host := ""
	if t.ip.IsValid() {
		host = t.ip.String()
	}
	c, err := by.DialContext(ctx, network, net.JoinHostPort(host, strconv.Itoa(t.port)))
	if err == nil {
		d.stack.host.dialled.Add(1)
	}
	return c, err
}

// conns returns the connections that the kernel has accepted at ports of ours, closed ones
// included for as long as the kernel knows them. What it does not tell is not listed.
func (h *host) conns() (all []Socket) {
	if h == nil {
		return nil
	}
	list, err := h.kernel.Conns(func(local, remote netip.AddrPort) bool {
		h.mu.RLock()
		defer h.mu.RUnlock()
		return h.serves(local, remote)
	})
	if err != nil {
		h.stack.log.Debug("the kernel's connections", "interface", h.stack.name, "error", err)
	}
	for _, c := range list {
		all = append(all, kernelSocket(c))
	}
	return all
}

// kernelConn holds both ends of a connection of the kernel.
type kernelConn struct{ local, remote netip.AddrPort }

// serves says whether a connection of the kernel is one that it has accepted for us. mu is held.
func (h *host) serves(local, remote netip.AddrPort) bool {
	if _, kept := h.kept[kernelConn{local, remote}]; kept {
		return true
	}
	p := h.ports[hostKey{backing.TCP, netip.AddrPortFrom(local.Addr().WithZone(""), local.Port())}]
	return p != nil && p.listener != nil
}

func kernelSocket(c hostnet.Conn) Socket {
	return Socket{Network: "tcp", State: c.State, RecvQ: c.RecvQ, SendQ: c.SendQ, Local: c.Local,
		Remote: c.Remote, Kernel: true, TCP: &TCPInfo{RTO: c.RTO, RTT: c.RTT, RTTVar: c.RTTVar,
			MSS: c.MSS, Cwnd: c.Cwnd, Ssthresh: c.Ssthresh, Unacked: c.Unacked, SegsOut: c.SegsOut,
			SegsIn: c.SegsIn, Retrans: c.Retrans, Timestamps: c.Timestamps, SACK: c.SACK,
			SndWscale: c.SndWscale, RcvWscale: c.RcvWscale, BytesAcked: c.BytesAcked,
			BytesReceived: c.BytesReceived}}
}

// keepConns notes the connections that the kernel has, before it stops serving at ports of ours:
// they go on, and the ports may be others' next. mu is held.
func (h *host) keepConns(ports []*hostPort) {
	if !slices.ContainsFunc(ports, func(p *hostPort) bool { return p.accepted }) {
		return
	}
	list, err := h.kernel.Conns(h.serves)
	if err != nil {
		h.stack.log.Debug("the kernel's connections", "interface", h.stack.name, "error", err)
		return
	}
	h.kept = map[kernelConn]struct{}{}
	for _, c := range list {
		h.kept[kernelConn{c.Local, c.Remote}] = struct{}{}
	}
}
