// Package dhcp asks DHCP servers for addresses, and for what comes with them: DHCPv4 (RFC 2131),
// DHCPv6 and DHCPv6 without addresses (RFC 8415). Leases are kept until the stack ends.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Host takes what servers give. Its methods may be called from any goroutine.
type Host interface {
	// HardwareAddr returns the link's address; empty: it has none.
	HardwareAddr() net.HardwareAddr
	// Listen opens a UDP socket ("udp4", "udp6") on a port of every address.
	Listen(network string, port int) (net.PacketConn, error)
	// Broadcast sends an IPv4 packet to all hosts of the link, from whatever source it has.
	Broadcast(packet []byte) error
	// UseAddress takes an address into use, after duplicate detection: the error is
	// env.ErrDuplicateAddress if another host has it.
	UseAddress(ctx context.Context, p netip.Prefix) error
	// RemoveAddress ends the use of an address.
	RemoveAddress(p netip.Prefix)
	// AbortConnectionsOf ends the TCP connections of an address.
	AbortConnectionsOf(a netip.Addr)
	// Configure takes routes and resolvers of a source into use, in place of its earlier ones.
	Configure(from env.Source, routes []env.Route, dns []netip.Addr) error
	// UseMTU limits IPv4 packets, in bytes; 0: the lease has no limit, or is over.
	UseMTU(mtu uint16)
}

// Config sets the times of a client.
type Config struct {
	Renewal   time.Duration // the least time between two renewals
	Decline   time.Duration // the pause after a DECLINE
	Detection time.Duration // the time that duplicate detection takes; negative: there is none
}

// Clients asks for addresses on one link, by each protocol at most once at a time.
type Clients struct {
	env    *env.Env
	host   Host
	cfg    Config
	linkUp linkUpWaiters

	sent, refused atomic.Uint64
}

// New makes clients, which read e once they are asked for something.
func New(e *env.Env, h Host, cfg Config) *Clients { return &Clients{env: e, host: h, cfg: cfg} }

// AcquireV4 gets an IPv4 address, and renews its lease in the background.
func (c *Clients) AcquireV4(ctx context.Context) error {
	d, err := c.open("udp4", dhcpClientPort)
	if err != nil {
		return err
	}
	d.protocol, d.name, d.source = &dhcp4{d}, "DHCP", env.FromDHCPv4
	return d.acquireLease(ctx)
}

// AcquireV6 gets an IPv6 address, and renews its lease in the background.
func (c *Clients) AcquireV6(ctx context.Context) error {
	d, err := c.openV6()
	if err != nil {
		return err
	}
	return d.acquireLease(ctx)
}

// ConfirmLeases asks whether the addresses are good for the link, which is up again.
func (c *Clients) ConfirmLeases() { c.linkUp.wakeAll() }

// Counts returns how many messages have been sent, and how many leases, or parts of them, could not
// be used.
func (c *Clients) Counts() (sent, refused uint64) { return c.sent.Load(), c.refused.Load() }

// lease holds what a server gave us.
type lease struct {
	prefix netip.Prefix // in DHCPv6 of length 128: what is on the link, routers advertise
	dns    []netip.Addr
	routes []env.Route // of DHCPv4, without the one to the subnet
	mtu    uint16      // of DHCPv4; 0: none

	renew, rebind, ends time.Time
	refused             []string // what came with it and cannot be

	ack    *dhcpv4.DHCPv4  // of DHCPv4
	server netip.Addr      // of DHCPv4
	reply  *dhcpv6.Message // of DHCPv6
}

// protocol is one version of DHCP. An error that is errBadLease says that there is no such lease.
type protocol interface {
	// offer asks for an address.
	offer(ctx context.Context) (*lease, error)
	// decline tells the server that somebody uses the address, and returns the least pause after
	// that.
	decline(l *lease) time.Duration
	// renew asks the server for the same address, rebind asks any.
	renew(l *lease) (*lease, error)
	rebind(l *lease) (*lease, error)
	// confirm asks whether the address is good for the link that we are on now, and returns the
	// lease as it is then; nil: it is over. Without an answer the address is good.
	confirm(l *lease) *lease
}

// client asks for an address by one version of DHCP. One goroutine at a time uses it.
type client struct {
	*Clients
	protocol protocol
	name     string
	source   env.Source
	conn     net.PacketConn
	linkUp   chan struct{} // the link is up again
	lease    *lease        // nil until acquireAddress succeeds
}

// open opens the port of a client.
func (c *Clients) open(network string, port int) (*client, error) {
	if len(c.host.HardwareAddr()) == 0 {
		return nil, errors.New("the link has no hardware address, by which DHCP tells hosts " +
			"apart; give Addresses instead")
	}
	conn, err := c.host.Listen(network, port)
	if err != nil {
		return nil, fmt.Errorf("open the DHCP client's port: %w", err)
	}
	return &client{Clients: c, conn: conn, linkUp: c.linkUp.add()}, nil
}

// acquireLease gets an address, and renews its lease in the background. It closes the port.
func (d *client) acquireLease(ctx context.Context) error {
	if err := d.acquireAddress(ctx); err != nil {
		d.conn.Close()
		return err
	}
	d.env.Go(func() {
		defer d.conn.Close()
		d.keepLease()
	})
	return nil
}

// acquireAddress asks for an address until a server has given one that nobody else uses, or ctx
// ends. After a refusal or an address that is in use it begins again, each time later; after a
// DECLINE as after a refusal where ctx leaves no time for its pause.
func (d *client) acquireAddress(ctx context.Context) error {
	later := doubling(dhcpFirstWait, dhcpLongestWait)
	for wait := later(0); ; wait = later(wait) {
		l, err := d.protocol.offer(ctx)
		if err == nil {
			if err = d.host.UseAddress(ctx, l.prefix); err == nil {
				d.lease = l
				return d.useLease(l)
			}
		}
		pause := d.jitter(wait)
		switch {
		case errors.Is(err, env.ErrDuplicateAddress):
			least := d.protocol.decline(l)
			enough := least + dhcpFirstWait + max(d.cfg.Detection, 0)
			if end, limited := ctx.Deadline(); !limited || d.env.Clock.Until(end) > enough {
				pause = max(pause, least)
			}
		case !errors.Is(err, errBadLease):
			return err
		}
		d.refused.Add(1)
		d.env.Log.Warn(d.name, "interface", d.env.Name, "error", err)
		if !d.pause(ctx, pause) {
			return fmt.Errorf("%w on %s: %w (%w)", ErrNoLease, d.env.Name, context.Cause(ctx), err)
		}
	}
}

// useLease takes what came with the address into use.
func (d *client) useLease(l *lease) error {
	for _, r := range l.refused {
		d.refused.Add(1)
		d.env.Log.Warn(d.name+": refused", "interface", d.env.Name, "what", r)
	}
	if d.source == env.FromDHCPv6 {
		return d.host.Configure(d.source, nil, l.dns)
	}
	d.host.UseMTU(l.mtu)
	routes := append([]env.Route{env.Connected(l.prefix)}, l.routes...)
	return d.host.Configure(d.source, routes, l.dns)
}

// keepLease renews the lease from the server that gave it, then from any, and when it has run out
// the address is given up and another asked for (RFC 2131 section 4.4.5, RFC 8415 section 18.2.4).
// Connections go on when it is the same address again.
func (d *client) keepLease() {
	for d.env.Ctx.Err() == nil {
		next := d.awaitRenewal(d.lease)
		if next != nil && d.replaceLease(next) {
			continue
		}
		if d.env.Ctx.Err() != nil {
			return
		}
		old := d.lease.prefix
		d.env.Log.Warn("the "+d.name+" lease is over", "interface", d.env.Name, "address",
			old.String())
		d.host.RemoveAddress(old)
		d.host.Configure(d.source, nil, nil)
		if d.source == env.FromDHCPv4 {
			d.host.UseMTU(0)
		}
		if err := d.acquireAddress(d.env.Ctx); err != nil {
			d.env.Log.Warn(d.name, "interface", d.env.Name, "error", err)
			d.pause(d.env.Ctx, dhcpLongestWait)
		}
		if d.lease.prefix.Addr() != old.Addr() {
			d.host.AbortConnectionsOf(old.Addr())
		}
	}
}

// replaceLease replaces the lease by a renewed one, unless the address of that cannot be used.
func (d *client) replaceLease(l *lease) bool {
	if l.prefix != d.lease.prefix {
		if err := d.host.UseAddress(d.env.Ctx, l.prefix); err != nil {
			d.env.Log.Warn("a renewed address", "interface", d.env.Name, "error", err)
			if errors.Is(err, env.ErrDuplicateAddress) {
				d.pause(d.env.Ctx, d.protocol.decline(l))
			}
			return false
		}
		d.host.AbortConnectionsOf(d.lease.prefix.Addr())
		d.host.RemoveAddress(d.lease.prefix)
		d.host.AbortConnectionsOf(d.lease.prefix.Addr()) // what came before it was gone
	}
	if err := d.useLease(l); err != nil {
		d.env.Log.Warn("what came with a lease", "interface", d.env.Name, "error", err)
	}
	d.lease = l
	return true
}

// awaitRenewal waits for the time to renew, or until the link comes up again, and returns the lease
// as it is then; nil when it is over or the stack ends.
func (d *client) awaitRenewal(l *lease) *lease {
	switch d.awaitTime(d.env.Ctx, l.renew, d.linkUp) {
	case stackEnded:
		return nil
	case linkCameUp:
		return d.protocol.confirm(l)
	}
	next, err := d.protocol.renew(l)
	if err != nil && !errors.Is(err, errBadLease) {
		next, _ = d.protocol.rebind(l)
	}
	return next
}

// ask sends a message, as often as repeat has it, until parse finds the answer in a datagram or ctx
// ends (RFC 8415 section 15). When the link comes up, repeat begins anew: what was sent before went
// nowhere. What there is no room for in the ring, as on a port that is paused, is as good as lost.
func ask[M any](ctx context.Context, d *client, message any, send func() error,
	repeat schedule, parse func([]byte) *M) (*M, error) {
	stop := context.AfterFunc(ctx, func() { d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for wait := repeat(0); ; {
		d.sent.Add(1)
		if err := send(); err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return nil, fmt.Errorf("send %v: %w", message, err)
		}
		d.conn.SetReadDeadline(d.env.Clock.Now().Add(d.jitter(wait)))
		linkCame := readUntilLinkUp(d.conn, d.linkUp)
		answer := read(ctx, d.conn, parse)
		if wait = repeat(wait); linkCame() {
			wait = repeat(0)
			defer env.Notify(d.linkUp) // the answer may be of the link before: confirm it
		}
		if answer != nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w on %s (%s): %w", ErrNoLease, d.env.Name, d.name,
				context.Cause(ctx))
		}
	}
}

// read returns what parse finds in a datagram, or nil at the deadline of reads or once ctx ends.
func read[M any](ctx context.Context, conn net.PacketConn, parse func([]byte) *M) *M {
	buf := make([]byte, 1500)
	for ctx.Err() == nil {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return nil
		}
		if m := parse(buf[:n]); m != nil {
			return m
		}
	}
	return nil
}

// wakeReason says what ended the wait of a DHCP client.
type wakeReason int

const (
	timeReached wakeReason = iota
	linkCameUp
	stackEnded
)

// awaitTime waits until t, or until the link comes up again, or ctx ends.
func (c *Clients) awaitTime(ctx context.Context, t time.Time, linkUp <-chan struct{}) wakeReason {
	timer := c.env.Clock.NewTimer(c.env.Clock.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return timeReached
	case <-linkUp:
		return linkCameUp
	case <-ctx.Done():
		return stackEnded
	}
}

// readUntilLinkUp ends the reads of c when the link comes up. The caller has set the deadline of
// reads, and calls what is returned when it no longer reads: it reports whether the link came up.
func readUntilLinkUp(c net.PacketConn, linkUp <-chan struct{}) (done func() bool) {
	reading, came := make(chan struct{}), make(chan bool, 1)
	go func() {
		select {
		case <-linkUp:
			c.SetReadDeadline(time.Unix(1, 0))
			came <- true
		case <-reading:
			came <- false
		}
	}()
	return func() bool { close(reading); return <-came }
}

// pause waits for d, and reports whether ctx has not ended.
func (c *Clients) pause(ctx context.Context, d time.Duration) bool {
	return c.env.Clock.Sleep(ctx, d) == nil
}

// schedule says how long the answer to a message is waited for, given how long the one before was.
type schedule func(last time.Duration) time.Duration

// doubling waits first, then twice as long each time up to most.
func doubling(first, most time.Duration) schedule {
	return func(last time.Duration) time.Duration { return min(max(2*last, first), most) }
}

// halving waits half of the time that is left until the deadline, but least (RFC 2131 section
// 4.4.5).
func halving(c clock.Clock, deadline time.Time, least time.Duration) schedule {
	return func(time.Duration) time.Duration { return max(c.Until(deadline)/2, least) }
}

// jitter makes d up to a tenth longer, so that hosts that began together do not go on together.
func (c *Clients) jitter(d time.Duration) time.Duration {
	return d + time.Duration(c.env.Random.Rand().Int64N(int64(d/10+1)))
}

// newXID4 gives a DHCPv4 message a random number of its own: the library's are always the system's.
func (c *Clients) newXID4() dhcpv4.Modifier {
	var id dhcpv4.TransactionID
	c.env.Random.Read(id[:])
	return dhcpv4.WithTransactionID(id)
}

// renumber6 gives m a random number of its own, likewise.
func (c *Clients) renumber6(m *dhcpv6.Message) *dhcpv6.Message {
	c.env.Random.Read(m.TransactionID[:])
	return m
}

// duid returns the name by which DHCPv6 servers know us: our hardware address, and the time, which
// counts from the beginning of the year 2000 (RFC 8415 section 11.2).
func (c *Clients) duid() dhcpv6.DUID {
	since := c.env.Clock.Since(time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC))
	return &dhcpv6.DUIDLLT{HWType: iana.HWTypeEthernet, Time: uint32(since / time.Second),
		LinkLayerAddr: c.host.HardwareAddr()}
}

// linkUpWaiters holds the channels to notify when the link is up again.
type linkUpWaiters struct {
	mu      sync.Mutex
	waiters []chan struct{} // guarded by mu
}

// add returns a channel of capacity one that receives a token each time the link comes up. Who
// takes a token and leaves what it means to another puts it back.
func (r *linkUpWaiters) add() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{}, 1)
	r.waiters = append(r.waiters, c)
	return c
}

// wakeAll puts a token into each channel that has none.
func (r *linkUpWaiters) wakeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.waiters {
		env.Notify(c)
	}
}
