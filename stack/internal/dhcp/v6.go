package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Ports and group of DHCPv6 (RFC 8415 section 7).
const (
	dhcp6ServerPort = 547
	dhcp6ClientPort = 546
	dhcp6Servers    = "ff02::1:2"
)

// dhcp6 implements protocol for DHCPv6.
type dhcp6 struct{ *client }

// openV6 opens the port of a client of DHCPv6.
func (c *Clients) openV6() (*dhcp6, error) {
	d, err := c.open("udp6", dhcp6ClientPort)
	if err != nil {
		return nil, err
	}
	d.protocol, d.name, d.source = &dhcp6{d}, "DHCPv6", env.FromDHCPv6
	return &dhcp6{d}, nil
}

// decline implements protocol.
func (d *dhcp6) decline(l *lease) time.Duration {
	d.conn.WriteTo(d.messageFor(l, dhcpv6.MessageTypeDecline).ToBytes(), d.servers())
	return 0
}

// servers returns where all messages go.
func (d *dhcp6) servers() *net.UDPAddr {
	return &net.UDPAddr{IP: net.ParseIP(dhcp6Servers), Port: dhcp6ServerPort, Zone: d.env.Name}
}

// offer goes through SOLICIT, ADVERTISE, REQUEST, REPLY.
func (d *dhcp6) offer(ctx context.Context) (*lease, error) {
	solicit, err := dhcpv6.NewSolicit(d.host.HardwareAddr(), dhcpv6.WithClientID(d.duid()))
	if err != nil {
		return nil, err
	}
	repeat := doubling(dhcpFirstWait, dhcpLongestWait)
	advertise, err := d.ask(ctx, d.renumber6(solicit), repeat, dhcpv6.MessageTypeAdvertise)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv6.NewRequestFromAdvertise(advertise)
	if err != nil {
		return nil, err
	}
	return d.request(ctx, d.renumber6(request), repeat)
}

// request sends a request and takes the reply apart.
func (d *dhcp6) request(ctx context.Context, request *dhcpv6.Message,
	repeat schedule) (*lease, error) {
	asked := d.env.Clock.Now()
	reply, err := d.ask(ctx, request, repeat, dhcpv6.MessageTypeReply)
	if err != nil {
		return nil, err
	}
	return parseLease6(reply, asked, d.cfg.Renewal)
}

// parseLease6 takes a REPLY apart that answers what was asked then. least is the least time between
// renewals.
func parseLease6(reply *dhcpv6.Message, asked time.Time, least time.Duration) (*lease, error) {
	ia := reply.Options.OneIANA()
	if ia == nil || ia.Options.OneAddress() == nil {
		return nil, fmt.Errorf("%w: no address in the reply: %v",
			errBadLease, reply.Options.Status())
	}
	given := ia.Options.OneAddress()
	addr, ok := netip.AddrFromSlice(given.IPv6Addr)
	if !ok || env.CheckAddress(netip.PrefixFrom(addr, 128)) != nil || given.ValidLifetime == 0 {
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
	return &lease{reply: reply, prefix: netip.PrefixFrom(addr, 128),
		dns:   dns[:min(len(dns), maxLeaseServers)],
		renew: asked.Add(t.renew), rebind: asked.Add(t.rebind), ends: asked.Add(t.ends)}, nil
}

// ask sends m to all servers until one answers with the wanted type.
func (d *dhcp6) ask(ctx context.Context, m *dhcpv6.Message, repeat schedule,
	want dhcpv6.MessageType) (*dhcpv6.Message, error) {
	send := func() error {
		_, err := d.conn.WriteTo(m.ToBytes(), d.servers())
		return err
	}
	return ask(ctx, d.client, m.MessageType, send, repeat, func(b []byte) *dhcpv6.Message {
		answer, err := dhcpv6.MessageFromBytes(b)
		if err == nil && answer.TransactionID == m.TransactionID && answer.MessageType == want {
			return answer
		}
		return nil
	})
}

// renew implements protocol.
func (d *dhcp6) renew(l *lease) (*lease, error) {
	return d.extend(l, dhcpv6.MessageTypeRenew, l.rebind)
}

// rebind implements protocol.
func (d *dhcp6) rebind(l *lease) (*lease, error) {
	return d.extend(l, dhcpv6.MessageTypeRebind, l.ends)
}

// Repetitions of Renew and Rebind (RFC 8415 section 7.6: REN_TIMEOUT, REN_MAX_RT).
const renewFirstWait, renewLongestWait = 10 * time.Second, 10 * time.Minute

// extend asks for the same address again until the deadline. A message that cannot be sent is as
// good as one that is lost.
func (d *dhcp6) extend(l *lease, how dhcpv6.MessageType, deadline time.Time) (*lease, error) {
	ctx, cancel := d.env.Clock.WithDeadline(d.env.Ctx, deadline)
	defer cancel()
	for {
		next, err := d.request(ctx, d.messageFor(l, how),
			doubling(renewFirstWait, renewLongestWait))
		if err == nil || errors.Is(err, errBadLease) || !d.pause(ctx, d.cfg.Renewal) {
			return next, err
		}
	}
}

// confirm implements protocol (RFC 8415 section 18.2.3).
func (d *dhcp6) confirm(l *lease) *lease {
	deadline := d.env.Clock.Now().Add(confirmTime)
	if l.ends.Before(deadline) {
		deadline = l.ends
	}
	ctx, cancel := d.env.Clock.WithDeadline(d.env.Ctx, deadline)
	defer cancel()
	reply, err := d.ask(ctx, d.messageFor(l, dhcpv6.MessageTypeConfirm),
		doubling(dhcpFirstWait, dhcpLongestWait), dhcpv6.MessageTypeReply)
	if err != nil {
		if d.env.Clock.Now().Before(l.ends) {
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
func (d *dhcp6) messageFor(l *lease, t dhcpv6.MessageType) *dhcpv6.Message {
	m := d.renumber6(&dhcpv6.Message{MessageType: t})
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

// RefreshInfo asks DHCPv6 servers for resolvers, but no addresses, as long as the stack lives
// (RFC 8415 section 18.2.6).
func (c *Clients) RefreshInfo() {
	d, err := c.openV6()
	if err != nil {
		c.env.Log.Warn("ask for resolvers", "interface", c.env.Name, "error", err)
		return
	}
	defer d.conn.Close()
	for {
		reply, err := d.inform()
		if err != nil {
			return // the stack ends
		}
		if err := c.host.Configure(env.FromDHCPv6, nil, addrs(reply.Options.DNS())); err != nil {
			c.env.Log.Warn("resolvers from DHCPv6", "interface", c.env.Name, "error", err)
		}
		again := c.env.Clock.Now().Add(max(reply.Options.InformationRefreshTime(informedFor),
			informedLeast))
		if c.awaitTime(c.env.Ctx, again, d.linkUp) == stackEnded {
			return
		}
	}
}

// inform goes through INFORMATION-REQUEST, REPLY.
func (d *dhcp6) inform() (*dhcpv6.Message, error) {
	m := d.renumber6(&dhcpv6.Message{MessageType: dhcpv6.MessageTypeInformationRequest})
	m.AddOption(dhcpv6.OptRequestedOption(dhcpv6.OptionDNSRecursiveNameServer,
		dhcpv6.OptionInformationRefreshTime))
	m.AddOption(dhcpv6.OptElapsedTime(0))
	return d.ask(d.env.Ctx, m, doubling(dhcpFirstWait, dhcpLongestWait), dhcpv6.MessageTypeReply)
}
