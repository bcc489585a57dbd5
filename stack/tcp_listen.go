package stack

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// mappedBits counts those in front of an IPv4 address in IPv6 (RFC 4291 section 2.5.5.2).
const mappedBits = 96

// TCPListener accepts TCP connections. It has the methods of net.TCPListener except SyscallConn,
// see the package comment. Its methods may be called from any goroutine.
type TCPListener struct {
	connState
	ep        tcpip.Endpoint
	network   string
	family    family
	laddr     *net.TCPAddr
	keepAlive net.KeepAliveConfig
	shared    bool // with other listeners: ListenConfig.ReusePort
	backlog   int  // set by open
	pacing    listenPacing
	bound     tcpip.FullAddress // of listenerTable

	// Config.Host: what the kernel has accepted, and the ports there. Nil otherwise.
	kernel  *kernelQueue
	binding *hostmode.Binding

	rd      ioSide
	events  waiter.Entry
	waiting atomic.Int64 // connections of netstack that wait for Accept

	// Guarded by rd.mu: whether any connection of netstack was accepted, the peer of the last one,
	// and its own end, which mostly is that of the one before.
	accepted    bool
	peer, local tcpip.FullAddress
	localAddr   *net.TCPAddr // local; nil: none yet
}

var _ net.Listener = (*TCPListener)(nil)

// Listen announces on a local TCP address: "tcp", "tcp4" or "tcp6", and an address such as ":80",
// "192.0.2.10:http" or "[::]:0". See net.Listen for the forms. Names are looked up with
// [Stack.Resolver]. The returned value is a *TCPListener.
func (s *Stack) Listen(network, address string) (net.Listener, error) {
	return s.ListenConfig().Listen(context.Background(), network, address)
}

// ListenTCP is net.ListenTCP: a nil laddr, or one without IP, is the wildcard; port 0 is any free
// one.
func (s *Stack) ListenTCP(network string, laddr *net.TCPAddr) (*TCPListener, error) {
	return s.ListenConfig().listenTCP(network, laddr)
}

func (l *TCPListener) open(laddr *net.TCPAddr, backlog int) error {
	s := l.stack
	at, err := s.zones.bindAddress(l.family, laddr.IP, laddr.Port, laddr.Zone)
	if err != nil {
		return err
	}
	s.listeners.mu.Lock() // two listeners must not miss each other
	defer s.listeners.mu.Unlock()
	switch taken := s.listeners.taken(l, at); {
	case taken && at.Addr.Len() != 0 && !s.owns(at.Addr):
		return os.NewSyscallError("bind", syscall.EADDRNOTAVAIL) // as bind(2) looks at it first
	case taken:
		return os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	return s.newEndpoint(tcp.ProtocolNumber, l.family,
		func(ep tcpip.Endpoint, q *waiter.Queue) error {
			// As net.Listen does: an earlier server's connections do not keep the port.
			ep.SocketOptions().SetReuseAddress(true)
			ep.SocketOptions().SetReusePort(l.shared)
			if terr := ep.Bind(at); terr != nil {
				return syscallError("bind", terr)
			}
			bound, terr := ep.GetLocalAddress()
			if terr != nil {
				return syscallError("getsockname", terr)
			}
			l.ep, l.laddr, l.backlog = ep, s.zones.tcpAddr(l.family, bound), backlog
			register(q, &l.events, listenerEvents{l}, readEvents)
			if err := l.listenOnHost(bound); err != nil {
				return err
			}
			// Netstack takes connections beyond the backlog and counts handshakes below it: with
			// one more both are Linux's limits.
			if terr := ep.Listen(backlog + 1); terr != nil {
				s.host.unbind(l.binding)
				return syscallError("listen", terr)
			}
			at.Port = bound.Port
			s.listeners.add(l, at)
			return nil
		})
}

// listenerTable finds the listeners of a stack. Each of its operations takes the same time however
// many there are. It is not safe for concurrent use.
type listenerTable struct {
	mu         sync.Mutex // its user's
	byEndpoint map[tcpip.Endpoint]*TCPListener
	byPort     map[uint16]*listenerPort
}

// listenerPort counts the listeners of one port. Those of one place either all share it or are one.
type listenerPort struct {
	at       map[listenerPlace]int
	specific [2][2]int // of a specific address, by its version, and by whether they share it
}

// listenerPlace holds what a listener is bound to within its port.
type listenerPlace struct {
	addr   tcpip.Address // of length 0: any
	family family        // of any address only; otherwise 0
	shared bool
}

func newListenerTable() *listenerTable {
	return &listenerTable{byEndpoint: map[tcpip.Endpoint]*TCPListener{},
		byPort: map[uint16]*listenerPort{}}
}

// waitingFor returns how many connections wait for Accept, those included that their peers have
// reset, and how many may.
func (t *listenerTable) waitingFor(ep *tcp.Endpoint) (waiting, backlog int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.byEndpoint[ep]; l != nil {
		return max(0, int(l.waiting.Load())), l.backlog
	}
	return 0, 0
}

// listenerEvents counts the connections that netstack puts into the queue for Accept, each of which
// it tells once.
type listenerEvents struct{ l *TCPListener }

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (e listenerEvents) NotifyEvent(mask waiter.EventMask) {
	if mask&(waiter.EventHUp|waiter.EventErr) == 0 {
		e.l.waiting.Add(1)
	}
	e.l.rd.notify()
}

// place returns what a listener of family f is bound to at an address.
func (l *TCPListener) place(a tcpip.Address) listenerPlace {
	if a.Len() == 0 {
		return listenerPlace{family: l.family, shared: l.shared}
	}
	return listenerPlace{addr: a, shared: l.shared}
}

// add adds a listener that is bound to at.
func (t *listenerTable) add(l *TCPListener, at tcpip.FullAddress) {
	p := t.byPort[at.Port]
	if p == nil {
		p = &listenerPort{at: map[listenerPlace]int{}}
		t.byPort[at.Port] = p
	}
	l.bound = at
	t.byEndpoint[l.ep] = l
	p.count(l.place(at.Addr), 1)
}

// remove removes a listener, if it was added.
func (t *listenerTable) remove(l *TCPListener) {
	if t.byEndpoint[l.ep] != l {
		return
	}
	delete(t.byEndpoint, l.ep)
	p := t.byPort[l.bound.Port]
	p.count(l.place(l.bound.Addr), -1)
	if len(p.at) == 0 {
		delete(t.byPort, l.bound.Port)
	}
}

// count changes the number of listeners of a place by n.
func (p *listenerPort) count(at listenerPlace, n int) {
	if p.at[at] += n; p.at[at] == 0 {
		delete(p.at, at)
	}
	if at.addr.Len() != 0 {
		p.specific[versionIndex(at.addr)][boolIndex(at.shared)] += n
	}
}

// taken reports whether a listener has at's port on an address that covers at or is covered by it,
// and does not share it with n. Netstack lets the wildcard and a specific address share a port;
// Linux does not.
func (t *listenerTable) taken(n *TCPListener, at tcpip.FullAddress) bool {
	p := t.byPort[at.Port]
	if p == nil || at.Port == 0 {
		return false
	}
	v4, v6 := covers(n.family, at.Addr)
	for _, f := range []family{inet4, inet6, inet} {
		w4, w6 := covers(f, tcpip.Address{})
		if (v4 && w4 || v6 && w6) && p.conflicts(n.shared, func(shared bool) int {
			return p.at[listenerPlace{family: f, shared: shared}]
		}) {
			return true
		}
	}
	return p.conflicts(n.shared, func(shared bool) int {
		if at.Addr.Len() != 0 {
			return p.at[listenerPlace{addr: at.Addr, shared: shared}]
		}
		all := 0
		for v, covered := range [2]bool{v4, v6} {
			if covered {
				all += p.specific[v][boolIndex(shared)]
			}
		}
		return all
	})
}

// conflicts reports whether a new listener cannot be beside those that are counted: unless it
// shares the port beside any, or else beside those that do not.
func (p *listenerPort) conflicts(shares bool, listeners func(shared bool) int) bool {
	return listeners(false) > 0 || !shares && listeners(true) > 0
}

// versionIndex returns 0 for an IPv4 address and 1 for an IPv6 address.
func versionIndex(a tcpip.Address) int { return boolIndex(a.Len() == net.IPv6len) }

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Accept waits for the next connection. The returned value is a *TCPConn; with [Config.Host] that
// of a peer that has not come by our netdev is a *net.TCPConn.
func (l *TCPListener) Accept() (net.Conn, error) {
	c, byKernel, err := l.accept(l.kernel)
	switch {
	case err != nil:
		return nil, l.opError("accept", err)
	case byKernel != nil:
		return byKernel, nil
	}
	return c, nil
}

// AcceptTCP is Accept with the concrete type. Keep-alive is on as [TCPOptions] says. Connections
// of the kernel wait for Accept.
func (l *TCPListener) AcceptTCP() (*TCPConn, error) {
	c, _, err := l.accept(nil)
	if err != nil {
		return nil, l.opError("accept", err)
	}
	return c, nil
}

// accept waits for a connection of netstack, or of the kernel in a queue, which may be nil.
func (l *TCPListener) accept(kernel *kernelQueue) (*TCPConn, *net.TCPConn, error) {
	l.rd.mu.Lock()
	defer l.rd.mu.Unlock()
	for {
		if err := l.check(&l.rd); err != nil {
			return nil, nil, err
		}
		if c := kernel.takeInTurn(); c != nil {
			return nil, c, nil
		}
		ep, q, terr := l.ep.Accept(&l.peer)
		switch {
		case terr == nil:
			l.waiting.Add(-1)
			return l.conn(ep, q), nil, nil
		case wouldBlock(terr):
			if c := kernel.take(); c != nil {
				return nil, c, nil
			}
			l.rd.park()
		default:
			return nil, nil, l.orClosedErr(syscallError("accept4", terr))
		}
	}
}

// conn makes a TCPConn of a connection just accepted. rd.mu is held.
func (l *TCPListener) conn(ep tcpip.Endpoint, q *waiter.Queue) *TCPConn {
	l.accepted = true
	laddr := l.laddr
	if laddr.IP.IsUnspecified() {
		if local, terr := ep.GetLocalAddress(); terr == nil {
			if l.localAddr == nil || local != l.local {
				l.local, l.localAddr = local, l.stack.zones.tcpAddr(l.family, local)
			}
			laddr = l.localAddr
		}
	}
	l.stack.markDefault(ep) // an accepted connection does not have the listener's
	raddr := l.stack.zones.tcpAddr(l.family, l.peer)
	return newTCPConn(l.stack, ep, q, l.network, laddr, raddr, l.keepAlive,
		l.pacing.rateFor(raddr))
}

// Close stops listening and frees the port. Connections that were established but not accepted are
// reset; accepted ones live on. Accept calls in progress return net.ErrClosed.
func (l *TCPListener) Close() error {
	if l.closed.Swap(true) {
		return l.opError("close", net.ErrClosed)
	}
	s := l.stack
	s.listeners.mu.Lock()
	s.listeners.remove(l)
	l.ep.Close()
	s.listeners.mu.Unlock()
	l.rd.stop()
	if l.binding != nil {
		l.rd.mu.Lock() // no Accept is in progress any more
		if l.accepted {
			l.binding.KeepConnections()
		}
		l.rd.mu.Unlock()
	}
	s.host.unbind(l.binding)
	return nil
}

// Addr returns the address listened on, also after Close. It is a *net.TCPAddr that must not be
// changed.
func (l *TCPListener) Addr() net.Addr { return l.laddr }

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on; the zero time means never.
func (l *TCPListener) SetDeadline(t time.Time) error {
	if err := l.done(); err != nil {
		return err
	}
	l.rd.setDeadline(l.stack.clock, t)
	return nil
}

// File always fails with ErrNoDescriptor.
func (l *TCPListener) File() (*os.File, error) { return nil, l.opError("file", ErrNoDescriptor) }

func (l *TCPListener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: l.network, Addr: l.laddr, Err: err}
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

// ListenConfig has the options of a listener. Make one with [Stack.ListenConfig]. It may be used
// from any goroutine as long as its fields are not changed.
type ListenConfig struct {
	// KeepAlive and KeepAliveConfig, of accepted connections, are as in net.ListenConfig: by
	// default what
	// [TCPOptions] says, no probes if KeepAlive is negative and KeepAliveConfig not enabled.
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// ReusePort lets several listeners, or several UDP sockets, have the same address and port, if
	// all of them set it. Each connection is one of theirs, and each peer's datagrams go to one of
	// them (SO_REUSEPORT of Linux).
	ReusePort bool

	// Backlog is [TCPOptions].Backlog of this listener. 0: the stack's.
	Backlog int

	// Pacing limits each accepted connection to a rate in bytes per second, see
	// [TCPConn.SetPacing], which changes it. 0: no limit. The kernel keeps those that it has
	// accepted (Config.Host) to it as well (SO_MAX_PACING_RATE).
	Pacing uint64

	// PacingRules give connections of some clients another rate than Pacing: that of the rule with
	// the longest prefix that contains the client's address. They are looked at one by one.
	PacingRules []PacingRule

	stack *Stack
}

// ListenConfig returns a ListenConfig of this stack with every option at its default.
func (s *Stack) ListenConfig() *ListenConfig { return &ListenConfig{stack: s} }

// ListenUDP does what net.ListenUDP does: a nil laddr, or one without IP, is the wildcard; port 0
// is any free one.
func (s *Stack) ListenUDP(network string, laddr *net.UDPAddr) (*UDPConn, error) {
	return s.ListenConfig().listenUDP(network, laddr)
}

// ListenPacket announces on a local UDP address: "udp", "udp4" or "udp6", and an address as for
// [Stack.Listen]. As in package net, a group's address stands for the wildcard address and a port
// that other sockets bound to a group's address may have, too; the group is not joined, see
// [UDPConn.JoinGroup]. The returned value is a *UDPConn.
func (s *Stack) ListenPacket(network, address string) (net.PacketConn, error) {
	return s.ListenConfig().ListenPacket(context.Background(), network, address)
}

// Listen is [Stack.Listen] with c's options. ctx bounds the lookup of a name.
func (c *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	list, err := c.stack.names.resolveListen(ctx, "tcp", network, address)
	if err != nil {
		return nil, err
	}
	l, err := c.listenTCP(network, list.first().tcp())
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ListenPacket is [Stack.ListenPacket] with c's options. ctx bounds the lookup of a name.
func (c *ListenConfig) ListenPacket(ctx context.Context,
	network, address string) (net.PacketConn, error) {
	list, err := c.stack.names.resolveListen(ctx, "udp", network, address)
	if err != nil {
		return nil, err
	}
	p, err := c.listenUDP(network, list.first().udp())
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *ListenConfig) listenTCP(network string, laddr *net.TCPAddr) (*TCPListener, error) {
	if err := checkNetwork("tcp", network); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: orNil(laddr), Err: err}
	}
	if laddr == nil {
		laddr = &net.TCPAddr{}
	}
	rates, err := newListenPacing(c)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: laddr, Err: err}
	}
	l := &TCPListener{network: network,
		family: listenFamily(network, laddr.IP), shared: c.ReusePort, pacing: rates}
	l.stack, l.keepAlive = c.stack, mergeKeepAlive(c.KeepAlive, c.KeepAliveConfig,
		*c.stack.cfg.TCP.KeepAlive)
	if err := l.open(laddr, cmp.Or(c.Backlog, c.stack.cfg.TCP.Backlog)); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: laddr, Err: err}
	}
	return l, nil
}

func (c *ListenConfig) listenUDP(network string, laddr *net.UDPAddr) (*UDPConn, error) {
	if err := checkNetwork("udp", network); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: orNil(laddr), Err: err}
	}
	if laddr == nil {
		laddr = &net.UDPAddr{}
	}
	p, err := c.stack.openUDP(&UDPConn{reusePort: c.ReusePort, forGroup: laddr.IP.IsMulticast()},
		network, listenFamily, laddr, nil)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: laddr, Err: err}
	}
	return p, nil
}

// mergeKeepAlive returns what the two fields of net.Dialer and net.ListenConfig mean together.
func mergeKeepAlive(d time.Duration, config, byDefault net.KeepAliveConfig) net.KeepAliveConfig {
	switch {
	case config.Enable:
		return config
	case d < 0:
		return net.KeepAliveConfig{}
	case d > 0:
		return net.KeepAliveConfig{Enable: true, Idle: d}
	}
	return byDefault
}

// PacingRule gives connections of clients within a prefix a rate of their own, see
// [ListenConfig].PacingRules.
type PacingRule struct {
	Clients        netip.Prefix
	BytesPerSecond uint64 // of each connection, as for [TCPConn.SetPacing]; 0: no limit
}

// listenPacing holds the rates of what a listener accepts. It does not change.
type listenPacing struct {
	rate  uint64       // without a rule, bytes per second
	rules []PacingRule // longer prefixes first
}

// rateFor returns the rate of a client's connection, in bytes per second; 0: no limit.
func (p *listenPacing) rateFor(client *net.TCPAddr) uint64 {
	if len(p.rules) > 0 {
		a, _ := netip.AddrFromSlice(client.IP)
		a = a.Unmap()
		for i := range p.rules {
			if p.rules[i].Clients.Contains(a) {
				return p.rules[i].BytesPerSecond
			}
		}
	}
	return p.rate
}

// newListenPacing returns the rates of c's listeners. A prefix that is none is an error.
func newListenPacing(c *ListenConfig) (p listenPacing, err error) {
	p = listenPacing{rate: c.Pacing, rules: slices.Clone(c.PacingRules)}
	for i := range p.rules {
		clients := &p.rules[i].Clients
		if !clients.IsValid() {
			return p, fmt.Errorf("rule %d of PacingRules: %v is no prefix", i, *clients)
		}
		if a := clients.Addr(); a.Is4In6() && clients.Bits() >= mappedBits {
			*clients = netip.PrefixFrom(a.Unmap(), clients.Bits()-mappedBits)
		}
	}
	slices.SortStableFunc(p.rules, func(a, b PacingRule) int {
		return cmp.Compare(b.Clients.Bits(), a.Clients.Bits())
	})
	return p, nil
}

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

func newKernelQueue(limit int) *kernelQueue {
	q := &kernelQueue{limit: max(limit, 1)}
	q.room.L = &q.mu
	return q
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
	if !isLimit(rate) {
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
