package stack

import (
	"errors"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// confirmTime is how long servers are asked, when the link is up again, whether the address is
// still ours.
const confirmTime = 10 * time.Second

// keep implements dhcpClient: it renews the lease from the server that gave it, then from any, and
// when it has run out the address is given up and another asked for (RFC 2131 section 4.4.5).
// Connections go on when it is the same address again.
func (d *dhcp4) keep() {
	for d.s.ctx.Err() == nil {
		next := d.awaitRenewal(d.lease)
		if next != nil && d.replaceLease(next) {
			continue
		}
		if d.s.ctx.Err() != nil {
			return
		}
		old := d.lease.prefix
		d.s.log.Warn("the DHCP lease is over", "interface", d.s.name, "address", old.String())
		d.s.removeAddress(old)
		d.s.applyAutoconf(fromDHCPv4, nil, nil)
		if err := d.acquire(d.s.ctx); err != nil {
			d.s.log.Warn("DHCP", "interface", d.s.name, "error", err)
			d.s.pause(d.s.ctx, dhcpLongestWait)
		}
		if d.lease.prefix.Addr() != old.Addr() {
			d.s.abortConnectionsOf(old.Addr())
		}
	}
}

// replaceLease replaces the lease by a renewed one, unless the address of that cannot be used.
func (d *dhcp4) replaceLease(l *lease4) bool {
	if l.prefix != d.lease.prefix {
		if err := d.s.useAddress(d.s.ctx, l.prefix); err != nil {
			d.s.log.Warn("a renewed address", "interface", d.s.name, "error", err)
			if errors.Is(err, ErrDuplicateAddress) {
				d.decline(l)
				d.s.pause(d.s.ctx, d.s.cfg.declineWait)
			}
			return false
		}
		d.s.abortConnectionsOf(d.lease.prefix.Addr())
		d.s.removeAddress(d.lease.prefix)
		d.s.abortConnectionsOf(d.lease.prefix.Addr()) // what came before it was gone
	}
	if err := d.use(l); err != nil {
		d.s.log.Warn("what came with a lease", "interface", d.s.name, "error", err)
	}
	d.lease = l
	return true
}

// awaitRenewal waits for the time to renew, or until the link comes up again, and returns the lease
// as it is then; nil when it is over or the stack ends.
func (d *dhcp4) awaitRenewal(l *lease4) *lease4 {
	switch d.s.awaitTime(d.s.ctx, l.renew, d.linkUp) {
	case stackEnded:
		return nil
	case linkCameUp:
		return d.confirm(l)
	}
	next, err := d.renew(l, l.rebind, d.unicast(l.server))
	if err != nil && !errors.Is(err, errBadLease) {
		next, _ = d.renew(l, l.ends, d.broadcast)
	}
	return next
}

// renew asks for the same address again until the deadline, by a number of its own: an answer from
// before may have come twice. A message that cannot be sent is as good as one that is lost.
func (d *dhcp4) renew(l *lease4, deadline time.Time,
	send func(*dhcpv4.DHCPv4) error) (*lease4, error) {
	for {
		request, err := dhcpv4.NewRenewFromAck(l.ack, d.s.newXID4(),
			dhcpv4.WithRequestedOptions(dhcpWanted...))
		if err != nil {
			return nil, err
		}
		next, err := d.extend(l, request, deadline, send,
			halving(d.s.clock, deadline, d.s.cfg.renewal))
		again := d.s.clock.Now().Add(d.s.cfg.renewal)
		if err == nil || errors.Is(err, errBadLease) || !again.Before(deadline) ||
			!d.s.pause(d.s.ctx, d.s.cfg.renewal) {
			return next, err
		}
	}
}

// confirm asks whether the address is good for the link we are on now (RFC 2131 section 3.2).
// Without an answer it is.
func (d *dhcp4) confirm(l *lease4) *lease4 {
	request, err := dhcpv4.New(d.s.newXID4(), dhcpv4.WithHwAddr(d.s.HardwareAddr()),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithBroadcast(true), dhcpv4.WithRequestedOptions(dhcpWanted...),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.prefix.Addr().AsSlice())))
	if err != nil {
		return l
	}
	deadline := d.s.clock.Now().Add(confirmTime)
	if l.ends.Before(deadline) {
		deadline = l.ends
	}
	next, err := d.extend(l, request, deadline, d.broadcast,
		doubling(dhcpFirstWait, dhcpLongestWait))
	if err != nil && !errors.Is(err, errBadLease) && d.s.clock.Now().Before(l.ends) {
		return l
	}
	return next
}

// extend sends a request for the lease we have until the deadline. An error that is
// errBadLease says that the lease is over.
func (d *dhcp4) extend(l *lease4, request *dhcpv4.DHCPv4, deadline time.Time,
	send func(*dhcpv4.DHCPv4) error, repeat schedule) (*lease4, error) {
	ctx, cancel := d.s.clock.WithDeadline(d.s.ctx, deadline)
	defer cancel()
	asked := d.s.clock.Now()
	ack, err := d.ask(ctx, request, send, repeat, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil, err
	}
	next, err := parseLease4(ack, asked, d.s.cfg.renewal)
	if err == nil && !next.server.IsValid() {
		next.server = l.server
	}
	return next, err
}
