package stack

import (
	"context"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// keep renews the lease until the stack ends: from the server that gave it, then from any, and when it has run out the
// address is given up and another asked for (RFC 2131 section 4.4.5).
func (d *dhcp4) keep(l *lease4) {
	defer d.conn.Close()
	for {
		next := d.renewed(l)
		if d.s.ctx.Err() != nil {
			return
		}
		if next == nil {
			d.s.log.Warn("the DHCP lease ran out", "interface", d.s.name, "address", l.prefix.String())
			d.s.drop(l.prefix)
			d.s.learn(fromDHCPv4, nil, nil)
			var err error
			if next, err = d.acquire(d.s.ctx); err != nil {
				return // the stack ends
			}
		}
		l = d.changeOver(l, next)
	}
}

// changeOver puts a renewed lease in the place of the old one.
func (d *dhcp4) changeOver(old, l *lease4) *lease4 {
	if l.prefix != old.prefix {
		d.s.drop(old.prefix)
		if err := d.s.adopt(l.prefix); err != nil {
			d.s.log.Warn("a renewed address", "interface", d.s.name, "error", err)
		}
	}
	if err := d.use(l); err != nil {
		d.s.log.Warn("what came with a lease", "interface", d.s.name, "error", err)
	}
	return l
}

// renewed waits for the time to renew and returns the new lease, or nil when the old one has run out or the stack ends.
func (d *dhcp4) renewed(l *lease4) *lease4 {
	if !sleepUntil(d.s.ctx, l.renew) {
		return nil
	}
	if next := d.renew(l, l.rebind, d.unicast(l.server)); next != nil {
		return next
	}
	return d.renew(l, l.ends, d.broadcast)
}

// renew asks for the same address again until the deadline.
func (d *dhcp4) renew(l *lease4, deadline time.Time, send func(*dhcpv4.DHCPv4) error) *lease4 {
	ctx, cancel := context.WithDeadline(d.s.ctx, deadline)
	defer cancel()
	request, err := dhcpv4.NewRenewFromAck(l.ack)
	if err != nil {
		return nil
	}
	asked := time.Now()
	ack, err := d.ask(ctx, request, send, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil
	}
	next, err := parseLease4(ack, asked)
	if err != nil {
		return nil
	}
	if !next.server.IsValid() {
		next.server = l.server
	}
	return next
}

// sleepUntil waits, and reports whether ctx has not ended.
func sleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
