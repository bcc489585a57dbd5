package stack

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// Dialer has the options of a dial; its fields are those of net.Dialer, and ReusePort. Make one
// with [Stack.Dialer]. It may be used from any goroutine as long as its fields are not changed.
type Dialer struct {
	// Timeout and Deadline bound the whole dial, name lookup included; the earlier one counts, and
	// so does the context's deadline. Zero: none, but TCP itself gives up after 127 s, see
	// TCPSynRetriesOption at TCPOptions.Netstack.
	Timeout  time.Duration
	Deadline time.Time

	// LocalAddr is the *net.TCPAddr or *net.UDPAddr to dial from; nil: chosen.
	LocalAddr net.Addr

	// FallbackDelay says how long one address has a head start on the next when a name has several
	// (RFC 8305's connection attempt delay). Default 250 ms. Negative: try one after the other,
	// each with its share of the time, as net.Dialer does then.
	FallbackDelay time.Duration

	// KeepAlive and KeepAliveConfig are as in net.Dialer: probes every 15 s by default, none if
	// KeepAlive is negative and KeepAliveConfig not enabled.
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// ReusePort lets the port of LocalAddr be one that listeners, UDP sockets or other dials have,
	// if all of them set it (SO_REUSEPORT of Linux): so one connects from the port that one listens
	// on. Without it such a dial fails with EADDRINUSE.
	ReusePort bool

	stack *Stack
}

// Dialer returns a Dialer of this stack with every option at its default.
func (s *Stack) Dialer() *Dialer { return &Dialer{stack: s} }

// DialContext connects to address on network ("tcp", "tcp4", "tcp6", "udp", "udp4", "udp6"), see
// net.Dialer.DialContext for the forms. Names are looked up with [Stack.Resolver]; of several
// addresses the first to answer wins (RFC 8305). Once connected, ctx does not matter any more.
// The returned value is a *TCPConn or *UDPConn.
func (s *Stack) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return s.Dialer().DialContext(ctx, network, address)
}

// Dial is DialContext without a context.
func (s *Stack) Dial(network, address string) (net.Conn, error) {
	return s.DialContext(context.Background(), network, address)
}

// DialTimeout is Dial that fails after timeout, name lookup included.
func (s *Stack) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&Dialer{Timeout: timeout, stack: s}).DialContext(context.Background(), network, address)
}

// DialTCP is net.DialTCP. If laddr is nil, local address and port are chosen.
func (s *Stack) DialTCP(network string, laddr, raddr *net.TCPAddr) (*TCPConn, error) {
	if err := checkNetwork("tcp", network); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: orNil(laddr),
			Addr: orNil(raddr), Err: err}
	}
	if raddr == nil {
		return nil, &net.OpError{Op: "dial", Net: network,
			Source: orNil(laddr), Err: errMissingAddress}
	}
	return s.Dialer().dialTCP(s.life.ctx, network, laddr, raddr)
}

// DialTCP is net.Dialer.DialTCP: Stack.DialTCP with d's options but LocalAddr, until ctx is done. A
// zero laddr stands for one that is chosen.
func (d *Dialer) DialTCP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (*TCPConn, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	l, r := net.TCPAddrFromAddrPort(laddr), net.TCPAddrFromAddrPort(raddr)
	if err := checkNetwork("tcp", network); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: l, Addr: r, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: l, Addr: r,
			Err: d.stack.orClosed(fromContext(err, false))}
	}
	return d.dialTCP(ctx, network, l, r)
}

// DialContext is Stack.DialContext with d's options.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if err := checkNetwork("tcp", network); err != nil && checkNetwork("udp", network) != nil {
		return fail(err)
	}
	if address == "" {
		return fail(errMissingAddress)
	}
	list, err := d.stack.names.resolveList(ctx, network, address)
	if err == nil {
		list, err = d.dialable(network, list)
	}
	if err != nil {
		return fail(d.stack.orClosed(err))
	}
	return d.race(ctx, network, list)
}

// bound adds the Dialer's time limits to ctx.
func (d *Dialer) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	end := d.Deadline
	if d.Timeout != 0 {
		if t := d.stack.clock.Now().Add(d.Timeout); end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if end.IsZero() {
		return ctx, func() {}
	}
	return d.stack.clock.WithDeadline(ctx, end)
}

// orClosed is net.ErrClosed if the stack has ended, else err.
func (s *Stack) orClosed(err error) error {
	if ended := s.life.done(); ended != nil {
		return ended
	}
	return err
}

// DialUDP does what net.DialUDP does: a connected socket that talks to raddr only and learns of its
// ICMP errors. If laddr is nil, local address and port are chosen.
func (s *Stack) DialUDP(network string, laddr, raddr *net.UDPAddr) (*UDPConn, error) {
	return s.Dialer().dialUDP(network, laddr, raddr)
}

// HTTPTransport returns http.DefaultTransport with this stack's DialContext instead of the host's,
// and without the host's proxy settings. Each call returns a new one with its own idle connections.
func (s *Stack) HTTPTransport() *http.Transport {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // a program may have replaced it
		base = &http.Transport{ForceAttemptHTTP2: true}
	}
	t := base.Clone()
	t.Proxy = nil
	t.DialContext = s.DialContext
	return t
}

// HTTPClient returns a client whose requests leave through this stack.
func (s *Stack) HTTPClient() *http.Client { return &http.Client{Transport: s.HTTPTransport()} }

// dialable leaves the addresses that can be dialled from LocalAddr.
func (d *Dialer) dialable(network string, list resolvedAddrs) (resolvedAddrs, error) {
	if d.LocalAddr == nil {
		return list, nil
	}
	var local net.IP
	switch a := d.LocalAddr.(type) {
	case *net.TCPAddr:
		local = a.IP
	case *net.UDPAddr:
		local = a.IP
	}
	if d.LocalAddr.Network() != network[:3] {
		return nil, &net.AddrError{Err: "mismatched local address type", Addr: d.LocalAddr.String()}
	}
	if len(local) == 0 || local.IsUnspecified() {
		return list, nil
	}
	var fit resolvedAddrs
	for _, t := range list {
		if !t.ip.IsValid() || t.ip.IsUnspecified() || t.ip.Is4() == is4(local) {
			fit = append(fit, t)
		}
	}
	if len(fit) == 0 {
		return nil, &net.AddrError{Err: errNoSuitable.Error(), Addr: d.LocalAddr.String()}
	}
	return fit, nil
}

// dialOne connects to one address.
func (d *Dialer) dialOne(ctx context.Context, network string, t resolvedAddr) (net.Conn, error) {
	if h := d.stack.host; h != nil && h.ByKernel(t.ip) {
		return d.dialKernel(ctx, network, t)
	}
	if network[0] == 'u' {
		laddr, _ := d.LocalAddr.(*net.UDPAddr)
		c, err := d.dialUDP(network, laddr, t.udp())
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	laddr, _ := d.LocalAddr.(*net.TCPAddr)
	c, err := d.dialTCP(ctx, network, laddr, t.tcp())
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Dialer) dialTCP(ctx context.Context, network string,
	laddr, raddr *net.TCPAddr) (*TCPConn, error) {
	growStack(d)
	trace := traceConnect(ctx, network, raddr)
	c, err := d.connect(ctx, network, laddr, raddr)
	if err != nil {
		d.stack.conns.failedDials.Add(1)
		err = &net.OpError{Op: "dial", Net: network, Source: orNil(laddr), Addr: raddr,
			Err: d.stack.orClosed(err)}
	}
	trace(err)
	return c, err
}

// connect makes an endpoint, starts its handshake and waits.
func (d *Dialer) connect(ctx context.Context, network string,
	laddr, raddr *net.TCPAddr) (*TCPConn, error) {
	s := d.stack
	if err := s.outage.refuse("connect"); err != nil {
		return nil, err
	}
	outages := s.outage.count.Load()
	var local net.IP
	if laddr != nil {
		local = laddr.IP
	}
	a := attempt{stack: s, family: dialFamily(network, local, raddr.IP)}
	defer func() { s.host.dialEnded(a.from) }()
	a.events, a.wake = waiter.NewChannelEntry(writeEvents)
	err := s.newEndpoint(tcp.ProtocolNumber, a.family,
		func(ep tcpip.Endpoint, q *waiter.Queue) error {
			a.ep, a.q = ep, q
			ep.SocketOptions().SetReusePort(d.ReusePort)
			return a.start(laddr, raddr)
		})
	if err != nil {
		return nil, err
	}
	defer func() { s.icmp.ended(a.icmp) }()
	if err := a.wait(ctx, handshakeLimit(s.net)); err != nil {
		a.ep.Close()
		if down := s.outage.since(outages); down != nil {
			err = os.NewSyscallError("connect", down)
		}
		return nil, err
	}
	return a.conn(network, mergeKeepAlive(d.KeepAlive, d.KeepAliveConfig, *s.cfg.TCP.KeepAlive))
}

// attempt describes a handshake in progress.
type attempt struct {
	stack  *Stack
	family family
	ep     tcpip.Endpoint
	q      *waiter.Queue
	events waiter.Entry
	wake   chan struct{}
	from   []*hostmode.Port // Config.Host: held while it is under way
	icmp   *dial            // what ICMP says of it
}

func (a *attempt) start(laddr, raddr *net.TCPAddr) error {
	if laddr != nil {
		at, err := a.stack.zones.bindAddress(a.family, laddr.IP, laddr.Port, laddr.Zone)
		if err != nil {
			return err
		}
		if terr := a.ep.Bind(at); terr != nil {
			return syscallError("bind", terr)
		}
		if a.from, err = a.stack.host.holdFor(laddr); err != nil {
			return err
		}
	}
	ip, err := a.family.address(raddr.IP)
	if err != nil {
		return err
	}
	if a.family == inet6 && ip.Len() == net.IPv4len || a.stack.isGroup(ip) {
		return os.NewSyscallError("connect", syscall.ENETUNREACH)
	}
	if err := a.stack.host.refuseKernel(raddr.IP); err != nil {
		return err
	}
	to, err := a.stack.zones.full(ip, raddr.Port, raddr.Zone)
	if err != nil {
		return err
	}
	a.q.EventRegister(&a.events)
	terr := a.ep.Connect(to)
	if _, ok := terr.(*tcpip.ErrConnectStarted); !ok && terr != nil {
		return syscallError("connect", terr)
	}
	id := a.ep.Info().(*gstack.TransportEndpointInfo).ID
	a.icmp = a.stack.icmp.dial(flow{id.LocalAddress, id.RemoteAddress, id.LocalPort,
		id.RemotePort})
	return nil
}

const mostSYNRetries = 6 // netstack gives up when the interval would exceed 120 s

// handshakeLimit returns how long a handshake may take that repeats its SYN as often as netstack's
// option says, with intervals of 1 s, 2 s, 4 s ... (RFC 6298 section 5.5).
func handshakeLimit(g *gstack.Stack) time.Duration {
	var retries tcpip.TCPSynRetriesOption
	g.TransportProtocolOption(tcp.ProtocolNumber, &retries) // it cannot fail for this one
	return (1<<(min(retries, mostSYNRetries)+1) - 1) * time.Second
}

// wait returns when the handshake is complete or has failed, when ctx is done, or after limit:
// netstack knows a number of SYN retries but does not heed it.
func (a *attempt) wait(ctx context.Context, limit time.Duration) error {
	giveUp := a.stack.clock.NewTimer(limit)
	defer giveUp.Stop()
	for {
		select {
		case <-ctx.Done():
			return fromContext(ctx.Err(), true)
		case <-giveUp.C:
			return os.NewSyscallError("connect", syscall.ETIMEDOUT)
		case <-a.icmp.failed:
		case <-a.wake:
		}
		if e := a.icmp.errno.Load(); e != 0 { // it came before what may have come since
			return os.NewSyscallError("connect", syscall.Errno(e))
		}
		switch tcp.EndpointState(a.ep.State()) {
		case tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
			continue // woken for nothing
		}
		if terr := a.ep.LastError(); terr != nil {
			return syscallError("connect", terr)
		}
		return nil
	}
}

// conn makes a TCPConn of the connected endpoint.
func (a *attempt) conn(network string, keepAlive net.KeepAliveConfig) (*TCPConn, error) {
	local, terr := a.ep.GetLocalAddress()
	if terr == nil {
		remote, rerr := a.ep.GetRemoteAddress()
		if rerr == nil {
			a.q.EventUnregister(&a.events)
			s := a.stack
			return newTCPConn(s, a.ep, a.q, network, s.zones.tcpAddr(a.family, local),
				s.zones.tcpAddr(a.family, remote), keepAlive, 0), nil
		}
		terr = rerr
	}
	a.ep.Close()
	return nil, syscallError("getpeername", terr)
}

// attemptDelay is RFC 8305's recommended connection attempt delay.
const attemptDelay = 250 * time.Millisecond

// race dials list. With several TCP addresses each has a head start on the next, and the first to
// connect wins; else one is tried after the other. The error is the first address's.
func (d *Dialer) race(ctx context.Context, network string, list resolvedAddrs) (net.Conn, error) {
	if len(list) == 1 || d.FallbackDelay < 0 || network[0] == 'u' {
		return d.oneByOne(ctx, network, list)
	}
	return d.staggered(ctx, network, interleave(list))
}

// interleave alternates families, keeping the order within each (RFC 8305 section 4).
func interleave(list resolvedAddrs) resolvedAddrs {
	var same, other, out resolvedAddrs
	for _, t := range list {
		if t.ip.Is4() == list[0].ip.Is4() {
			same = append(same, t)
		} else {
			other = append(other, t)
		}
	}
	for i := range max(len(same), len(other)) {
		if i < len(same) {
			out = append(out, same[i])
		}
		if i < len(other) {
			out = append(out, other[i])
		}
	}
	return out
}

type outcome struct {
	i    int
	conn net.Conn
	err  error
}

// staggered starts an attempt whenever one has failed or the delay has passed, and returns the
// first success. It returns only when every attempt has ended.
func (d *Dialer) staggered(ctx context.Context, network string,
	list resolvedAddrs) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan outcome, len(list))
	delay := d.stack.clock.NewTimer(0)
	defer delay.Stop()

	errs := make([]error, len(list))
	started, running := 0, 0
	start := func() {
		i := started
		started, running = started+1, running+1
		go func() {
			c, err := d.dialOne(ctx, network, list[i])
			results <- outcome{i, c, err}
		}()
		delay.Reset(cmp.Or(d.FallbackDelay, attemptDelay))
	}
	var winner net.Conn
	for winner == nil && (running > 0 || started < len(list)) {
		select {
		case <-delay.C:
			if started < len(list) {
				start()
			}
		case r := <-results:
			running--
			winner, errs[r.i] = r.conn, r.err
			if winner == nil && started < len(list) && ctx.Err() == nil {
				start()
			} else if ctx.Err() != nil {
				started = len(list)
			}
		}
	}
	cancel()
	for range running {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
	if winner != nil {
		return winner, nil
	}
	return nil, errs[0]
}

// shortestShare says what an address is given at least, if there is that much time, before the next
// one is tried: net.Dialer's figure.
const shortestShare = 2 * time.Second

// oneByOne dials the addresses in turn, each with an equal share of the time left.
func (d *Dialer) oneByOne(ctx context.Context, network string,
	list resolvedAddrs) (net.Conn, error) {
	var first error
	for i, t := range list {
		c, err := d.withShare(ctx, network, t, len(list)-i)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (d *Dialer) withShare(ctx context.Context, network string, t resolvedAddr,
	remaining int) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: d.LocalAddr,
			Addr: t.addr(network), Err: d.stack.orClosed(fromContext(ctx.Err(), false))}
	}
	if end, ok := ctx.Deadline(); ok && remaining > 1 {
		left := d.stack.clock.Until(end)
		share := max(left/time.Duration(remaining), min(left, shortestShare))
		var cancel context.CancelFunc
		ctx, cancel = d.stack.clock.WithTimeout(ctx, share)
		defer cancel()
	}
	return d.dialOne(ctx, network, t)
}

// dialKernel connects by the kernel to what it reaches otherwise than by our netdev.
func (d *Dialer) dialKernel(ctx context.Context, network string, t resolvedAddr) (net.Conn, error) {
	k := mergeKeepAlive(d.KeepAlive, d.KeepAliveConfig, *d.stack.cfg.TCP.KeepAlive)
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

// DialUDP does what net.Dialer.DialUDP does: Stack.DialUDP with d's options. A context that is
// done, or a deadline that has passed, fails it.
func (d *Dialer) DialUDP(ctx context.Context, network string,
	laddr, raddr netip.AddrPort) (*UDPConn, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	l, r := net.UDPAddrFromAddrPort(laddr), net.UDPAddrFromAddrPort(raddr)
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: l, Addr: r,
			Err: d.stack.orClosed(fromContext(err, false))}
	}
	return d.dialUDP(network, l, r)
}

func (d *Dialer) dialUDP(network string, laddr, raddr *net.UDPAddr) (*UDPConn, error) {
	if err := checkNetwork("udp", network); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: orNil(laddr),
			Addr: orNil(raddr), Err: err}
	}
	if raddr == nil {
		return nil, &net.OpError{Op: "dial", Net: network,
			Source: orNil(laddr), Err: errMissingAddress}
	}
	family := func(network string,
		local net.IP) family {
		return dialFamily(network, local, raddr.IP)
	}
	c, err := d.stack.openUDP(&UDPConn{reusePort: d.ReusePort}, network, family, laddr, raddr)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network,
			Source: orNil(laddr), Addr: raddr, Err: err}
	}
	return c, nil
}

// traceConnect calls the hooks of net/http/httptrace, if ctx has any; the returned function is
// called with the outcome.
func traceConnect(ctx context.Context, network string, raddr *net.TCPAddr) func(error) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return func(error) {}
	}
	if trace.ConnectStart != nil {
		trace.ConnectStart(network, raddr.String())
	}
	return func(err error) {
		if trace.ConnectDone != nil {
			trace.ConnectDone(network, raddr.String(), err)
		}
	}
}
