package stack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// kernelQueue holds the connections that the kernel has accepted for a listener. Nil holds none.
type kernelQueue struct {
	limit int

	mu     sync.Mutex
	room   sync.Cond // there is room, or the queue is closed
	conns  []*net.TCPConn
	closed bool
	first  bool // this queue has the next turn

	unlimited sync.Once // the log says that the kernel has no rates
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

// takeInTurn returns what take does every second time, else nil: neither the kernel's connections
// nor netstack's keep the others waiting.
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
		hostmode.Reset(c)
	}
	q.conns = nil
	q.room.Broadcast()
}

// waiting reports whether a connection waits.
func (q *kernelQueue) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.conns) > 0
}

// listenOnHost takes the ports of a listener that is bound.
func (l *TCPListener) listenOnHost(bound tcpip.FullAddress) (err error) {
	if l.stack.host == nil {
		return nil
	}
	l.kernel = newKernelQueue(l.backlog)
	b := hostmode.ForListener(boundAt(l.family, bound), kernelListener{l})
	l.binding, err = l.stack.host.bind(b)
	return err
}

// kernelListener implements hostmode.Listener for a listener of the stack.
type kernelListener struct{ *TCPListener }

// Backlog implements hostmode.Listener.
func (l kernelListener) Backlog() int { return l.backlog }

// Accept implements hostmode.Listener.
func (l kernelListener) Accept(c *net.TCPConn) {
	if err := c.SetKeepAliveConfig(l.keepAlive); err != nil {
		hostmode.Reset(c)
		return
	}
	l.limitKernel(c)
	if !l.kernel.put(c) {
		hostmode.Reset(c)
		return
	}
	l.rd.notify()
}

// limitKernel gives a connection of the kernel the listener's rate. Where the kernel has none, as
// that of gVisor, the log says so once.
func (l kernelListener) limitKernel(c *net.TCPConn) {
	rate := l.pacing.rateFor(c.RemoteAddr().(*net.TCPAddr))
	if !limited(rate) {
		return
	}
	if err := hostmode.LimitRate(c, rate); err != nil {
		l.kernel.unlimited.Do(func() {
			l.stack.log.Warn("the kernel does not keep connections that it accepts to the "+
				"listener's rate", "address", l.laddr, "error", err)
		})
	}
}

// Waiting implements hostmode.Listener.
func (l kernelListener) Waiting() bool { return l.kernel.waiting() }

// Refuse implements hostmode.Listener.
func (l kernelListener) Refuse() { l.kernel.close() }

// errByKernel says why DialTCP does not connect.
type errByKernel struct{ to netip.Addr }

func (e errByKernel) Error() string {
	return fmt.Sprintf("the kernel's route to %s does not leave by our netdev, and such a "+
		"connection is a *net.TCPConn: use DialContext", e.to)
}

// refuseKernel refuses what only the kernel reaches. A nil host refuses nothing.
func (h *host) refuseKernel(ip net.IP) error {
	to, _ := netip.AddrFromSlice(ip)
	if to = to.Unmap(); h != nil && h.ByKernel(to) {
		return errByKernel{to}
	}
	return nil
}

// holdFor takes the port that a connection is to be made from, if it is a given one. The
// caller gives them to host.DialEnded once there is a connection, or none.
func (h *host) holdFor(laddr *net.TCPAddr) ([]*hostmode.Port, error) {
	if h == nil || laddr == nil || laddr.Port == 0 {
		return nil, nil
	}
	a, _ := netip.AddrFromSlice(laddr.IP)
	if a = a.Unmap(); a.IsUnspecified() {
		a = netip.Addr{}
	}
	return h.Hold(a, uint16(laddr.Port))
}

// dialEnded gives back what holdFor has taken, if anything.
func (h *host) dialEnded(from []*hostmode.Port) {
	if len(from) > 0 {
		h.DialEnded(from)
	}
}

// dialKernel connects by the kernel to what it reaches otherwise than by our netdev.
func (d *Dialer) dialKernel(ctx context.Context, network string, t target) (net.Conn, error) {
	k := keepAlive(d.KeepAlive, d.KeepAliveConfig, *d.stack.cfg.TCP.KeepAlive)
	by := net.Dialer{LocalAddr: d.LocalAddr, KeepAliveConfig: k, FallbackDelay: -1} // t is one
	if !k.Enable {
		by.KeepAlive = -1
	}
	if network[0] == 't' && d.stack.host.Silent(netip.AddrPortFrom(t.ip, uint16(t.port))) {
		return nil, &net.OpError{Op: "dial", Net: network, Source: d.LocalAddr, Addr: t.tcp(),
			Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	host := ""
	if t.ip.IsValid() {
		host = t.ip.String()
	}
	return d.stack.host.Dial(ctx, &by, network, net.JoinHostPort(host, strconv.Itoa(t.port)))
}

// conns returns the connections that the kernel has accepted at ports of ours. A nil host has none.
func (h *host) conns() (all []Socket) {
	if h == nil {
		return nil
	}
	for _, c := range h.Conns() {
		all = append(all, kernelSocket(c))
	}
	return all
}

func kernelSocket(c hostnet.Conn) Socket {
	return Socket{Network: "tcp", State: c.State, RecvQ: c.RecvQ, SendQ: c.SendQ, Local: c.Local,
		Remote: c.Remote, Kernel: true, TCP: &TCPInfo{RTO: c.RTO, RTT: c.RTT, RTTVar: c.RTTVar,
			MSS: c.MSS, Cwnd: c.Cwnd, Ssthresh: c.Ssthresh, Unacked: c.Unacked, SegsOut: c.SegsOut,
			SegsIn: c.SegsIn, Retrans: c.Retrans, Timestamps: c.Timestamps, SACK: c.SACK,
			SndWscale: c.SndWscale, RcvWscale: c.RcvWscale, BytesAcked: c.BytesAcked,
			BytesReceived: c.BytesReceived}}
}
