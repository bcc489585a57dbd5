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
	s     *Stack
	conn  *UDPConn
	again <-chan struct{} // the link is up again
	lease *lease6         // nil until acquire succeeds
}

// newDHCP6 is openDHCP6 for addresses.
func newDHCP6(s *Stack) (lessee, error) {
	d, err := openDHCP6(s)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// openDHCP6 opens the client's port. Close ends it.
func openDHCP6(s *Stack) (*dhcp6, error) {
	if err := s.hasMAC(); err != nil {
		return nil, err
	}
	c, err := s.ListenUDP("udp6", &net.UDPAddr{Port: dhcp6ClientPort})
	if err != nil {
		return nil, fmt.Errorf("open the DHCPv6 client's port: %w", err)
	}
	return &dhcp6{s: s, conn: c, again: s.revived.ask()}, nil
}

// close implements lessee.
func (d *dhcp6) close() { d.conn.Close() }

// acquire implements lessee. After a refusal or an address that is in use it begins again.
func (d *dhcp6) acquire(ctx context.Context) error {
	for {
		l, err := d.offer(ctx)
		if err == nil {
			if err = d.s.adopt(ctx, l.addr); err == nil {
				d.lease = l
				return d.s.learn(fromDHCPv6, nil, l.dns)
			}
		}
		switch {
		case errors.Is(err, ErrDuplicateAddress):
			d.conn.WriteTo(d.about(l, dhcpv6.MessageTypeDecline).ToBytes(), d.servers())
		case !errors.Is(err, errUnfit):
			return err
		}
		d.s.log.Warn("DHCPv6", "interface", d.s.name, "error", err)
		if !sleepUntil(ctx, time.Now().Add(dhcpFirstWait)) {
			return noLease(ctx, d.s, err)
		}
	}
}

// servers is where all messages go.
func (d *dhcp6) servers() *net.UDPAddr {
	return &net.UDPAddr{IP: net.ParseIP(dhcp6Servers), Port: dhcp6ServerPort, Zone: d.s.name}
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
	return d.request(ctx, request)
}

// request sends a request and takes the reply apart.
func (d *dhcp6) request(ctx context.Context, request *dhcpv6.Message) (*lease6, error) {
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
		return nil, fmt.Errorf("%w: no address in the reply: %v", errUnfit, reply.Options.Status())
	}
	given := ia.Options.OneAddress()
	addr, ok := netip.AddrFromSlice(given.IPv6Addr)
	if !ok || checkAddress(netip.PrefixFrom(addr, 128)) != nil || given.ValidLifetime == 0 {
		return nil, fmt.Errorf("%w: the server gave %v for %v", errUnfit, given.IPv6Addr, given.ValidLifetime)
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
	for wait := dhcpFirstWait; ; wait = min(2*wait, dhcpLongestWait) {
		if _, err := d.conn.WriteTo(m.ToBytes(), d.servers()); err != nil {
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
