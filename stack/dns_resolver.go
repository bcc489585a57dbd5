package stack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// dnsPort is where resolvers listen.
const dnsPort = 53

// errNoDNS explains a failed lookup on a stack without resolvers.
var errNoDNS = errors.New("no DNS server is known: set DNS or ResolvConf in stack.Config")

// resolver looks names up through the stack it belongs to.
type resolver struct {
	stack *Stack
	conf  resolvConf
	net   *net.Resolver
	good  atomic.Int32 // index of the server that answered last
}

func newResolver(s *Stack, conf resolvConf) *resolver {
	r := &resolver{stack: s, conf: conf}
	r.net = &net.Resolver{PreferGo: true, Dial: r.dial}
	return r
}

// servers are those of the configuration, then those the network told us of.
func (r *resolver) servers() []netip.Addr {
	return append(slices.Clone(r.conf.servers), r.stack.autoconf.servers()...)
}

// Resolver looks names up with the servers of [Config] over this stack. It is package net's own
// resolver with our transport, so /etc/hosts is honoured, and search domains come from the host's
// resolv.conf; dials of this package use those of Config.ResolvConf instead.
func (s *Stack) Resolver() *net.Resolver { return s.dns.net }

// lookup tries name as it is and with the search domains of our resolv.conf.
func (r *resolver) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	var first error
	for _, full := range r.conf.candidates(name) {
		ips, err := r.lookupAbsolute(ctx, full)
		if err == nil {
			return ips, nil
		}
		err = r.describe(err, name)
		if first == nil {
			first = err
		}
		var dns *net.DNSError
		if !errors.As(err, &dns) || !dns.IsNotFound {
			break
		}
	}
	return nil, first
}

// lookupAbsolute looks up an absolute name, for as long as our resolv.conf says: package net goes
// by the host's.
func (r *resolver) lookupAbsolute(ctx context.Context, full string) ([]netip.Addr, error) {
	ctx, cancel := r.stack.clock.WithTimeout(ctx, r.conf.lookupLimit(len(r.servers())))
	defer cancel()
	return r.net.LookupNetIP(ctx, "ip", full)
}

// describe makes a lookup error speak of the name the caller asked for and of our server; package
// net put the host's there.
func (r *resolver) describe(err error, name string) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		dns.Name, dns.Server = name, ""
		if servers := r.servers(); len(servers) > 0 {
			dns.Server = netip.AddrPortFrom(servers[int(r.good.Load())%len(servers)],
				dnsPort).String()
		}
	}
	return err
}

// dial stands in for package net's dialling of the host's servers: it goes to ours.
func (r *resolver) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	servers := r.servers()
	if len(servers) == 0 {
		return nil, errNoDNS
	}
	if strings.HasPrefix(network, "tcp") {
		return r.dialStream(ctx, servers)
	}
	return &exchange{resolver: r, ctx: ctx, servers: servers,
		first: int(r.good.Load()) % len(servers)}, nil
}

// dialStream connects to the first server that accepts, for answers that do not fit a datagram.
func (r *resolver) dialStream(ctx context.Context, servers []netip.Addr) (net.Conn, error) {
	var list targets
	for i := range servers {
		server := servers[(int(r.good.Load())+i)%len(servers)]
		list = append(list, target{server, dnsPort})
	}
	d := r.stack.Dialer()
	return d.oneByOne(ctx, "tcp", list)
}

// exchange is a net.PacketConn for one question. Package net writes a query and reads until an
// answer fits; behind its back the query goes to the next server when one is silent or unwilling.
type exchange struct {
	resolver *resolver
	ctx      context.Context
	servers  []netip.Addr
	first    int // index of the server to begin with
	tried    int // servers asked so far
	query    []byte
	conn     *UDPConn
	deadline time.Time
}

// Write implements net.Conn.
func (e *exchange) Write(query []byte) (int, error) {
	e.query = append(e.query[:0], query...)
	return len(query), e.ask()
}

// ask sends the query to the next server that can be reached.
func (e *exchange) ask() error {
	var err error
	for servers := e.servers; e.tried < len(servers); {
		server := servers[(e.first+e.tried)%len(servers)]
		e.tried++
		if err = e.askOne(server); err == nil {
			return nil
		}
	}
	return err
}

func (e *exchange) askOne(server netip.Addr) error {
	e.Close()
	c, err := e.resolver.stack.DialUDP("udp", nil, target{server, dnsPort}.udp())
	if err != nil {
		return err
	}
	e.conn = c
	c.SetDeadline(e.share())
	_, err = c.Write(e.query)
	return err
}

// share is when to give up on the current server: the time left is divided among those not yet
// asked.
func (e *exchange) share() time.Time {
	end, clock := e.deadline, e.resolver.stack.clock
	own := len(e.servers) > 1 || clock.Virtual() // package net's is of the system's clock
	limit := clock.Now().Add(e.resolver.conf.timeout)
	if end.IsZero() || own && limit.Before(end) {
		end = limit
	}
	left := len(e.servers) - e.tried + 1
	return clock.Now().Add(clock.Until(end) / time.Duration(left))
}

// Read implements net.Conn.
func (e *exchange) Read(b []byte) (int, error) {
	for {
		if e.conn == nil {
			return 0, net.ErrClosed
		}
		n, err := e.conn.Read(b)
		last := e.tried == len(e.servers)
		if err == nil && (last || !unwilling(b[:n], e.query)) {
			e.resolver.good.Store(int32((e.first + e.tried - 1) % len(e.servers)))
			return n, nil
		}
		if last || e.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return n, err
		}
		if err := e.ask(); err != nil {
			return 0, err
		}
	}
}

// unwilling says whether an answer to query is SERVFAIL or REFUSED (RFC 1035 section 4.1.1).
func unwilling(answer, query []byte) bool {
	if len(answer) < 4 || len(query) < 2 || answer[0] != query[0] || answer[1] != query[1] {
		return false
	}
	rcode := answer[3] & 0xf
	return rcode == 2 || rcode == 5
}

// Close implements net.Conn.
func (e *exchange) Close() error {
	if e.conn != nil {
		e.conn.Close()
		e.conn = nil
	}
	return nil
}

// SetDeadline implements net.Conn; package net calls it once, before Write.
func (e *exchange) SetDeadline(t time.Time) error {
	e.deadline = t
	return nil
}

// The rest of net.Conn and net.PacketConn, which package net asks for to tell datagrams from
// streams.

func (e *exchange) LocalAddr() net.Addr                { return &net.UDPAddr{} }
func (e *exchange) RemoteAddr() net.Addr               { return &net.UDPAddr{} }
func (e *exchange) SetReadDeadline(t time.Time) error  { return e.SetDeadline(t) }
func (e *exchange) SetWriteDeadline(t time.Time) error { return e.SetDeadline(t) }

func (e *exchange) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := e.Read(b)
	return n, e.RemoteAddr(), err
}

func (e *exchange) WriteTo([]byte, net.Addr) (int, error) { return 0, os.ErrInvalid }
