package stack

import (
	"errors"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// keep implements dhcpClient: it renews the lease, and when it is over the address is given up and
// another asked for. Connections go on when it is the same address again.
func (d *dhcp6) keep() {
	for d.s.ctx.Err() == nil {
		next := d.awaitRenewal(d.lease)
		if next != nil && next.addr == d.lease.addr {
			d.lease = next
			continue
		}
		if d.s.ctx.Err() != nil {
			return
		}
		old := d.lease.addr
		d.s.log.Warn("the DHCPv6 lease is over", "interface", d.s.name, "address", old.String())
		d.s.removeAddress(old)
		d.s.applyAutoconf(fromDHCPv6, nil, nil)
		if err := d.acquire(d.s.ctx); err != nil {
			d.s.log.Warn("DHCPv6", "interface", d.s.name, "error", err)
			d.s.pause(d.s.ctx, dhcpLongestWait)
		}
		if d.lease.addr.Addr() != old.Addr() {
			d.s.abortConnectionsOf(old.Addr())
		}
	}
}

// awaitRenewal waits for the time to renew, or until the link comes up again, and returns the lease
// as it is then; nil when it is over or the stack ends.
func (d *dhcp6) awaitRenewal(l *lease6) *lease6 {
	switch d.s.awaitTime(d.s.ctx, l.renew, d.linkUp) {
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
	ctx, cancel := d.s.clock.WithDeadline(d.s.ctx, deadline)
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
	deadline := d.s.clock.Now().Add(confirmTime)
	if l.ends.Before(deadline) {
		deadline = l.ends
	}
	ctx, cancel := d.s.clock.WithDeadline(d.s.ctx, deadline)
	defer cancel()
	reply, err := d.ask(ctx, d.messageFor(l, dhcpv6.MessageTypeConfirm),
		doubling(dhcpFirstWait, dhcpLongestWait), dhcpv6.MessageTypeReply)
	if err != nil {
		if d.s.clock.Now().Before(l.ends) {
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

// messageFor is a message of type t that names the lease: renewing, confirming, declining. Any
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
