package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
)

// Ports and group of DHCPv6 (RFC 8415 section 7).
const (
	dhcp6ServerPort = 547
	dhcp6ClientPort = 546
	dhcp6Servers    = "ff02::1:2"
)

// lease6 is what a DHCPv6 server gave us.
type lease6 struct {
	reply       *dhcpv6.Message
	addr        netip.Prefix // of length 128: what is on the link, routers advertise
	dns         []netip.Addr
	renew, ends time.Time
}

// dhcp6 is the DHCPv6 client. One goroutine at a time uses it.
type dhcp6 struct {
	s    *Stack
	conn *UDPConn
}

func newDHCP6(s *Stack) (*dhcp6, error) {
	c, err := s.ListenUDP("udp6", &net.UDPAddr{Port: dhcp6ClientPort})
	if err != nil {
		return nil, fmt.Errorf("open the DHCPv6 client's port: %w", err)
	}
	return &dhcp6{s, c}, nil
}

// acquire asks for an address until a server has given one that nobody else uses, or ctx ends.
func (d *dhcp6) acquire(ctx context.Context) (*lease6, error) {
	for {
		l, err := d.offer(ctx)
		if err != nil {
			return nil, err
		}
		err = d.s.adopt(l.addr)
		if err == nil {
			return l, d.s.learn(fromDHCPv6, nil, l.dns)
		}
		if !errors.Is(err, ErrDuplicateAddress) {
			return nil, err
		}
		d.s.log.Warn("the address DHCPv6 gave is in use", "interface", d.s.name, "error", err)
		d.tell(l, dhcpv6.MessageTypeDecline)
	}
}

// offer is SOLICIT, ADVERTISE, REQUEST, REPLY.
func (d *dhcp6) offer(ctx context.Context) (*lease6, error) {
	solicit, err := dhcpv6.NewSolicit(d.s.HardwareAddr())
	if err != nil {
		return nil, err
	}
	advertise, err := d.ask(ctx, solicit, dhcpv6.MessageTypeAdvertise)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv6.NewRequestFromAdvertise(advertise)
	if err != nil {
		return nil, err
	}
	return d.lease(ctx, request)
}

// lease sends a request and takes the reply apart.
func (d *dhcp6) lease(ctx context.Context, request *dhcpv6.Message) (*lease6, error) {
	asked := time.Now()
	reply, err := d.ask(ctx, request, dhcpv6.MessageTypeReply)
	if err != nil {
		return nil, err
	}
	return parseLease6(reply, asked)
}

// parseLease6 takes a REPLY apart.
func parseLease6(reply *dhcpv6.Message, asked time.Time) (*lease6, error) {
	ia := reply.Options.OneIANA()
	if ia == nil || ia.Options.OneAddress() == nil {
		return nil, fmt.Errorf("%w: the DHCPv6 server's reply has none in it: %v", ErrNoLease, reply.Options.Status())
	}
	given := ia.Options.OneAddress()
	addr, ok := netip.AddrFromSlice(given.IPv6Addr)
	if !ok || checkAddress(netip.PrefixFrom(addr, 128)) != nil || given.ValidLifetime == 0 {
		return nil, fmt.Errorf("%w: the DHCPv6 server gave %v for %v", ErrNoLease, given.IPv6Addr, given.ValidLifetime)
	}
	renew := ia.T1
	if renew == 0 {
		renew = given.PreferredLifetime / 2
	}
	return &lease6{
		reply: reply, addr: netip.PrefixFrom(addr, 128), dns: addrs(reply.Options.DNS()),
		renew: asked.Add(renew), ends: asked.Add(given.ValidLifetime),
	}, nil
}

// ask sends m to all servers, again and again, until an answer of the wanted type comes or ctx ends (RFC 8415 section 15).
func (d *dhcp6) ask(ctx context.Context, m *dhcpv6.Message, want dhcpv6.MessageType) (*dhcpv6.Message, error) {
	stop := context.AfterFunc(ctx, func() { d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	to := &net.UDPAddr{IP: net.ParseIP(dhcp6Servers), Port: dhcp6ServerPort, Zone: d.s.name}
	for wait := dhcpFirstWait; ; wait = min(2*wait, dhcpLongestWait) {
		if _, err := d.conn.WriteTo(m.ToBytes(), to); err != nil {
			return nil, fmt.Errorf("send %v: %w", m.MessageType, err)
		}
		d.conn.SetReadDeadline(time.Now().Add(wait))
		if answer := d.read(ctx, m, want); answer != nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w on %s (DHCPv6): %w", ErrNoLease, d.s.name, context.Cause(ctx))
		}
	}
}

// read returns the answer to m, or nil at the deadline.
func (d *dhcp6) read(ctx context.Context, m *dhcpv6.Message, want dhcpv6.MessageType) *dhcpv6.Message {
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

// tell sends the lease back to its server in a message of another type: renewing, declining, releasing.
func (d *dhcp6) tell(l *lease6, t dhcpv6.MessageType) (*dhcpv6.Message, error) {
	m, err := dhcpv6.NewMessage()
	if err != nil {
		return nil, err
	}
	m.MessageType = t
	for _, o := range l.reply.Options.Options {
		switch o.Code() {
		case dhcpv6.OptionClientID, dhcpv6.OptionServerID, dhcpv6.OptionIANA:
			m.AddOption(o)
		}
	}
	if t == dhcpv6.MessageTypeDecline {
		_, err = d.conn.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.ParseIP(dhcp6Servers), Port: dhcp6ServerPort, Zone: d.s.name})
	}
	return m, err
}

// keep renews the lease until the stack ends; when it has run out another one is asked for.
func (d *dhcp6) keep(l *lease6) {
	defer d.conn.Close()
	for {
		next := d.renewed(l)
		if d.s.ctx.Err() != nil {
			return
		}
		if next == nil || next.addr != l.addr {
			d.s.drop(l.addr)
			d.s.learn(fromDHCPv6, nil, nil)
			var err error
			if next, err = d.acquire(d.s.ctx); err != nil {
				return
			}
		}
		l = next
	}
}

// renewed waits for the time to renew and returns the new lease, or nil when the old one has run out.
func (d *dhcp6) renewed(l *lease6) *lease6 {
	if !sleepUntil(d.s.ctx, l.renew) {
		return nil
	}
	ctx, cancel := context.WithDeadline(d.s.ctx, l.ends)
	defer cancel()
	m, err := d.tell(l, dhcpv6.MessageTypeRenew)
	if err != nil {
		return nil
	}
	next, err := d.lease(ctx, m)
	if err != nil {
		return nil
	}
	return next
}
