package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// Ports and group of DHCPv6 (RFC 8415 section 7).
const (
	dhcp6ServerPort = 547
	dhcp6ClientPort = 546
	dhcp6Servers    = "ff02::1:2"
)

// lease6 holds what a DHCPv6 server gave us.
type lease6 struct {
	reply               *dhcpv6.Message
	addr                netip.Prefix // of length 128: what is on the link, routers advertise
	dns                 []netip.Addr
	renew, rebind, ends time.Time
}

// dhcp6 is the DHCPv6 client. One goroutine at a time uses it.
type dhcp6 struct {
	s      *addressManager
	conn   *UDPConn
	linkUp chan struct{} // the link is up again
	lease  *lease6       // nil until acquire succeeds
}

// newDHCP6 is openDHCP6 for addresses.
func newDHCP6(s *addressManager) (dhcpClient, error) {
	d, err := openDHCP6(s)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// openDHCP6 opens the client's port. Close ends it.
func openDHCP6(s *addressManager) (*dhcp6, error) {
	if err := s.hasMAC(); err != nil {
		return nil, err
	}
	c, err := s.stack.ListenUDP("udp6", &net.UDPAddr{Port: dhcp6ClientPort})
	if err != nil {
		return nil, fmt.Errorf("open the DHCPv6 client's port: %w", err)
	}
	return &dhcp6{s: s, conn: c, linkUp: s.linkUp.add()}, nil
}

// close implements dhcpClient.
func (d *dhcp6) close() { d.conn.Close() }

// acquire implements dhcpClient. After a refusal or an address that is in use it begins again, each
// time later.
func (d *dhcp6) acquire(ctx context.Context) error {
	later := doubling(dhcpFirstWait, dhcpLongestWait)
	for wait := later(0); ; wait = later(wait) {
		l, err := d.offer(ctx)
		if err == nil {
			if err = d.s.useAddress(ctx, l.addr); err == nil {
				d.lease = l
				return d.s.applyAutoconf(fromDHCPv6, nil, l.dns)
			}
		}
		switch {
		case errors.Is(err, ErrDuplicateAddress):
			d.conn.WriteTo(d.messageFor(l, dhcpv6.MessageTypeDecline).ToBytes(), d.servers())
		case !errors.Is(err, errBadLease):
			return err
		}
		d.s.dhcp.refused.Add(1)
		d.s.env.Log.Warn("DHCPv6", "interface", d.s.env.Name, "error", err)
		if !d.s.pause(ctx, d.s.jitter(wait)) {
			return noLease(ctx, d.s, err)
		}
	}
}

// servers returns where all messages go.
func (d *dhcp6) servers() *net.UDPAddr {
	return &net.UDPAddr{IP: net.ParseIP(dhcp6Servers), Port: dhcp6ServerPort, Zone: d.s.env.Name}
}

// offer is SOLICIT, ADVERTISE, REQUEST, REPLY.
func (d *dhcp6) offer(ctx context.Context) (*lease6, error) {
	solicit, err := dhcpv6.NewSolicit(d.s.stack.HardwareAddr(), dhcpv6.WithClientID(d.s.duid()))
	if err != nil {
		return nil, err
	}
	repeat := doubling(dhcpFirstWait, dhcpLongestWait)
	advertise, err := d.ask(ctx, d.s.renumber6(solicit), repeat, dhcpv6.MessageTypeAdvertise)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv6.NewRequestFromAdvertise(advertise)
	if err != nil {
		return nil, err
	}
	return d.request(ctx, d.s.renumber6(request), repeat)
}

// request sends a request and takes the reply apart.
func (d *dhcp6) request(ctx context.Context, request *dhcpv6.Message,
	repeat schedule) (*lease6, error) {
	asked := d.s.env.Clock.Now()
	reply, err := d.ask(ctx, request, repeat, dhcpv6.MessageTypeReply)
	if err != nil {
		return nil, err
	}
	return parseLease6(reply, asked, d.s.cfg.renewal)
}

// parseLease6 takes a REPLY apart that answers what was asked then. least is the least time between
// renewals.
func parseLease6(reply *dhcpv6.Message, asked time.Time, least time.Duration) (*lease6, error) {
	ia := reply.Options.OneIANA()
	if ia == nil || ia.Options.OneAddress() == nil {
		return nil, fmt.Errorf("%w: no address in the reply: %v",
			errBadLease, reply.Options.Status())
	}
	given := ia.Options.OneAddress()
	addr, ok := netip.AddrFromSlice(given.IPv6Addr)
	if !ok || checkAddress(netip.PrefixFrom(addr, 128)) != nil || given.ValidLifetime == 0 {
		return nil, fmt.Errorf("%w: the server gave %v for %v", errBadLease,
			given.IPv6Addr, given.ValidLifetime)
	}
	// RFC 8415 sections 21.4 and 21.6
	if given.PreferredLifetime > given.ValidLifetime || ia.T2 != 0 && ia.T1 > ia.T2 {
		return nil, fmt.Errorf("%w: the server gave %v times that contradict each other",
			errBadLease, given.IPv6Addr)
	}
	t1 := ia.T1
	if t1 == 0 {
		t1 = given.PreferredLifetime / 2
	}
	t := terms(t1, ia.T2, given.ValidLifetime, least)
	dns := addrs(reply.Options.DNS())
	return &lease6{
		reply: reply, addr: netip.PrefixFrom(addr, 128), dns: dns[:min(len(dns), maxLeaseServers)],
		renew: asked.Add(t.renew), rebind: asked.Add(t.rebind), ends: asked.Add(t.ends),
	}, nil
}

// ask sends m to all servers, as often as repeat has it, until an answer of the wanted type comes
// or ctx ends (RFC 8415 section 15). When the link comes up, repeat begins anew. What there is no
// room for in the ring is as good as lost.
func (d *dhcp6) ask(ctx context.Context, m *dhcpv6.Message, repeat schedule,
	want dhcpv6.MessageType) (*dhcpv6.Message, error) {
	stop := context.AfterFunc(ctx, func() { d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for wait := repeat(0); ; {
		d.s.dhcp.sent.Add(1)
		_, err := d.conn.WriteTo(m.ToBytes(), d.servers())
		if err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return nil, fmt.Errorf("send %v: %w", m.MessageType, err)
		}
		d.conn.SetReadDeadline(d.s.env.Clock.Now().Add(d.s.jitter(wait)))
		linkCame := readUntilLinkUp(d.conn, d.linkUp)
		answer := d.read(ctx, m, want)
		if wait = repeat(wait); linkCame() {
			wait = repeat(0)
			defer notify(d.linkUp) // the answer may be of the link before: it is to be confirmed
		}
		if answer != nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w on %s (DHCPv6): %w", ErrNoLease,
				d.s.env.Name, context.Cause(ctx))
		}
	}
}

// read returns the answer to m, or nil at the deadline.
func (d *dhcp6) read(ctx context.Context, m *dhcpv6.Message,
	want dhcpv6.MessageType) *dhcpv6.Message {
	buf := make([]byte, 1500)
	for ctx.Err() == nil {
		n, err := d.conn.Read(buf)
		if err != nil {
			return nil
		}
		answer, err := dhcpv6.MessageFromBytes(buf[:n])
		if err == nil && answer.TransactionID == m.TransactionID && answer.MessageType == want {
			return answer
		}
	}
	return nil
}

// keep implements dhcpClient: it renews the lease, and when it is over the address is given up and
// another asked for. Connections go on when it is the same address again.
func (d *dhcp6) keep() {
	for d.s.env.Ctx.Err() == nil {
		next := d.awaitRenewal(d.lease)
		if next != nil && next.addr == d.lease.addr {
			d.lease = next
			continue
		}
		if d.s.env.Ctx.Err() != nil {
			return
		}
		old := d.lease.addr
		d.s.env.Log.Warn("the DHCPv6 lease is over", "interface", d.s.env.Name, "address",
			old.String())
		d.s.removeAddress(old)
		d.s.applyAutoconf(fromDHCPv6, nil, nil)
		if err := d.acquire(d.s.env.Ctx); err != nil {
			d.s.env.Log.Warn("DHCPv6", "interface", d.s.env.Name, "error", err)
			d.s.pause(d.s.env.Ctx, dhcpLongestWait)
		}
		if d.lease.addr.Addr() != old.Addr() {
			d.s.abortConnectionsOf(old.Addr())
		}
	}
}

// awaitRenewal waits for the time to renew, or until the link comes up again, and returns the lease
// as it is then; nil when it is over or the stack ends.
func (d *dhcp6) awaitRenewal(l *lease6) *lease6 {
	switch d.s.awaitTime(d.s.env.Ctx, l.renew, d.linkUp) {
	case stackEnded:
		return nil
	case linkCameUp:
		return d.confirm(l)
	}
	next, err := d.extend(l, dhcpv6.MessageTypeRenew, l.rebind)
	if err != nil && !errors.Is(err, errBadLease) {
		next, _ = d.extend(l, dhcpv6.MessageTypeRebind, l.ends)
	}
	return next
}

// Repetitions of Renew and Rebind (RFC 8415 section 7.6: REN_TIMEOUT, REN_MAX_RT).
const renewFirstWait, renewLongestWait = 10 * time.Second, 10 * time.Minute

// extend asks for the same address again until the deadline. A message that cannot be sent is as
// good as one that is lost.
func (d *dhcp6) extend(l *lease6, how dhcpv6.MessageType, deadline time.Time) (*lease6, error) {
	ctx, cancel := d.s.env.Clock.WithDeadline(d.s.env.Ctx, deadline)
	defer cancel()
	for {
		next, err := d.request(ctx, d.messageFor(l, how),
			doubling(renewFirstWait, renewLongestWait))
		if err == nil || errors.Is(err, errBadLease) ||
			!d.s.pause(ctx, d.s.cfg.renewal) {
			return next, err
		}
	}
}

// confirm asks whether the address is good for the link we are on now (RFC 8415 section 18.2.3).
// Without an answer it is.
func (d *dhcp6) confirm(l *lease6) *lease6 {
	deadline := d.s.env.Clock.Now().Add(confirmTime)
	if l.ends.Before(deadline) {
		deadline = l.ends
	}
	ctx, cancel := d.s.env.Clock.WithDeadline(d.s.env.Ctx, deadline)
	defer cancel()
	reply, err := d.ask(ctx, d.messageFor(l, dhcpv6.MessageTypeConfirm),
		doubling(dhcpFirstWait, dhcpLongestWait), dhcpv6.MessageTypeReply)
	if err != nil {
		if d.s.env.Clock.Now().Before(l.ends) {
			return l
		}
		return nil
	}
	if status := reply.Options.Status(); status != nil &&
		status.StatusCode == iana.StatusNotOnLink {
		return nil
	}
	return l
}

// messageFor returns a message of type t that names the lease: renewing, confirming, declining. Any
// server may confirm or rebind.
func (d *dhcp6) messageFor(l *lease6, t dhcpv6.MessageType) *dhcpv6.Message {
	m := d.s.renumber6(&dhcpv6.Message{MessageType: t})
	for _, o := range l.reply.Options.Options {
		switch o.Code() {
		case dhcpv6.OptionClientID, dhcpv6.OptionIANA:
			m.AddOption(o)
		case dhcpv6.OptionServerID:
			if t != dhcpv6.MessageTypeConfirm && t != dhcpv6.MessageTypeRebind {
				m.AddOption(o)
			}
		}
	}
	return m
}

// How long what a server told without giving an address is good, if it does not say, and at least
// (RFC 8415 section 7.6).
const (
	informedFor   = 24 * time.Hour
	informedLeast = 10 * time.Minute
)

// refreshDHCP6Info asks DHCPv6 servers for resolvers, but no addresses, as long as the stack lives
// (RFC 8415 section 18.2.6).
func (s *addressManager) refreshDHCP6Info() {
	d, err := openDHCP6(s)
	if err != nil {
		s.env.Log.Warn("ask for resolvers", "interface", s.env.Name, "error", err)
		return
	}
	defer d.close()
	for {
		reply, err := d.inform()
		if err != nil {
			return // the stack ends
		}
		if err := s.applyAutoconf(fromDHCPv6, nil, addrs(reply.Options.DNS())); err != nil {
			s.env.Log.Warn("resolvers from DHCPv6", "interface", s.env.Name, "error", err)
		}
		again := s.env.Clock.Now().Add(max(reply.Options.InformationRefreshTime(informedFor),
			informedLeast))
		if s.awaitTime(s.env.Ctx, again, d.linkUp) == stackEnded {
			return
		}
	}
}

// inform is INFORMATION-REQUEST, REPLY.
func (d *dhcp6) inform() (*dhcpv6.Message, error) {
	m := d.s.renumber6(&dhcpv6.Message{MessageType: dhcpv6.MessageTypeInformationRequest})
	m.AddOption(dhcpv6.OptRequestedOption(dhcpv6.OptionDNSRecursiveNameServer,
		dhcpv6.OptionInformationRefreshTime))
	m.AddOption(dhcpv6.OptElapsedTime(0))
	return d.ask(d.s.env.Ctx, m, doubling(dhcpFirstWait, dhcpLongestWait), dhcpv6.MessageTypeReply)
}
