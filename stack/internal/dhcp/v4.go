package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

const (
	// Ports of DHCP (RFC 2131 section 4.1).
	dhcpServerPort = 67
	dhcpClientPort = 68
	// dhcpFirstWait is how long the first message is given; each repetition doubles it, up to
	// dhcpLongestWait (RFC 2131 section 4.1, which begins with 4 s).
	dhcpFirstWait   = time.Second
	dhcpLongestWait = 64 * time.Second
	// DeclineWait says how long a client waits after a DECLINE before it begins again (RFC 2131
	// section 3.1 point 5).
	DeclineWait = 10 * time.Second
	// confirmTime says how long servers are asked, when the link is up again, whether the address
	// is still ours.
	confirmTime = 10 * time.Second
	// LeastRenewal gives the least time between two renewals (RFC 2131 section 4.4.5). No lease is
	// taken to be shorter than two.
	LeastRenewal = time.Minute
	// leastLeasedMTU gives the least MTU taken from a lease: dhclient-script and NetworkManager
	// ignore 576 and less, which only broken servers send.
	leastLeasedMTU = 577
	// Bounds of what one answer tells.
	maxLeaseRoutes  = 32
	maxLeaseServers = 8
)

// dhcpWanted says what we ask for besides an address.
var dhcpWanted = []dhcpv4.OptionCode{
	dhcpv4.OptionSubnetMask, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter,
	dhcpv4.OptionDomainNameServer, dhcpv4.OptionInterfaceMTU,
}

// ErrNoLease says that no DHCP server gave an address in time.
var ErrNoLease = errors.New("no DHCP server gave an address")

// errBadLease is in the error of an answer without a usable lease: a refusal, or an address that is
// not a host's.
var errBadLease = errors.New("no lease")

// dhcp4 implements protocol for DHCPv4.
type dhcp4 struct{ *client }

// offer goes through DISCOVER, OFFER, REQUEST, ACK.
func (d *dhcp4) offer(ctx context.Context) (*lease, error) {
	discover, err := dhcpv4.NewDiscovery(d.host.HardwareAddr(), d.newXID4(),
		dhcpv4.WithBroadcast(true),
		dhcpv4.WithRequestedOptions(dhcpWanted...))
	if err != nil {
		return nil, err
	}
	repeat := doubling(dhcpFirstWait, dhcpLongestWait)
	offer, err := d.ask(ctx, discover, d.broadcast, repeat, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, dhcpv4.WithBroadcast(true),
		dhcpv4.WithRequestedOptions(dhcpWanted...))
	if err != nil {
		return nil, err
	}
	asked := d.env.Clock.Now()
	ack, err := d.ask(ctx, request, d.broadcast, repeat,
		dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil, err
	}
	return parseLease4(ack, asked, d.cfg.Renewal)
}

// decline implements protocol (RFC 2131 section 3.1 step 5).
func (d *dhcp4) decline(l *lease) time.Duration {
	m, err := dhcpv4.New(d.newXID4(), dhcpv4.WithHwAddr(l.ack.ClientHWAddr),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.prefix.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.server.AsSlice())))
	if err == nil {
		d.broadcast(m)
	}
	return d.cfg.Decline
}

// ask sends m until a server answers with one of the wanted types. Both have the hardware address
// that was ours when a lease was first asked for, by which the server knows us: that of the netdev
// may be another now.
func (d *dhcp4) ask(ctx context.Context, m *dhcpv4.DHCPv4, send func(*dhcpv4.DHCPv4) error,
	repeat schedule, want ...dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	return ask(ctx, d.client, m.MessageType(), func() error { return send(m) }, repeat,
		func(b []byte) *dhcpv4.DHCPv4 {
			answer, err := dhcpv4.FromBytes(b)
			if err == nil && answer.OpCode == dhcpv4.OpcodeBootReply &&
				answer.TransactionID == m.TransactionID &&
				slices.Contains(want, answer.MessageType()) &&
				bytes.Equal(answer.ClientHWAddr, m.ClientHWAddr) {
				return answer
			}
			return nil
		})
}

// broadcast sends m from 0.0.0.0 to 255.255.255.255. A socket can not, as long as there is no
// address to send from.
func (d *dhcp4) broadcast(m *dhcpv4.DHCPv4) error {
	payload := m.ToBytes()
	const headers = header.IPv4MinimumSize + header.UDPMinimumSize
	packet := make([]byte, headers, headers+len(payload))
	packet = append(packet, payload...)
	udp := header.UDP(packet[header.IPv4MinimumSize:])
	udp.Encode(&header.UDPFields{SrcPort: dhcpClientPort, DstPort: dhcpServerPort,
		Length: uint16(len(udp))})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, header.IPv4Any,
		header.IPv4Broadcast, uint16(len(udp)))
	udp.SetChecksum(^udp.CalculateChecksum(checksum.Checksum(payload, sum)))
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber),
		SrcAddr: header.IPv4Any, DstAddr: header.IPv4Broadcast,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	return d.host.Broadcast(packet)
}

// unicast sends to one server, from the address it gave.
func (d *dhcp4) unicast(server netip.Addr) func(*dhcpv4.DHCPv4) error {
	return func(m *dhcpv4.DHCPv4) error {
		_, err := d.conn.WriteTo(m.ToBytes(),
			&net.UDPAddr{IP: server.AsSlice(), Port: dhcpServerPort})
		return err
	}
}

// parseLease4 takes an ACK apart that answers what was asked then. least is the least time between
// renewals.
func parseLease4(ack *dhcpv4.DHCPv4, asked time.Time, least time.Duration) (*lease, error) {
	if ack.MessageType() == dhcpv4.MessageTypeNak {
		return nil, fmt.Errorf("%w: the server refuses", errBadLease)
	}
	mask := ack.YourIPAddr.DefaultMask()
	if given := ack.Options.Get(dhcpv4.OptionSubnetMask); given != nil {
		mask = net.IPMask(given)
	}
	addr, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	ones, size := mask.Size()
	if size != 32 || ones == 0 {
		return nil, fmt.Errorf("%w: the server gave %v with mask %v, which is no mask of a subnet",
			errBadLease, ack.YourIPAddr, mask)
	}
	if !ok || env.CheckAddress(netip.PrefixFrom(addr, ones)) != nil {
		return nil, fmt.Errorf("%w: the server gave %v with mask %v",
			errBadLease, ack.YourIPAddr, mask)
	}
	l := &lease{ack: ack, prefix: netip.PrefixFrom(addr, ones), dns: addrs(ack.DNS())}
	l.dns = l.dns[:min(len(l.dns), maxLeaseServers)]
	l.parseRoutes(ack)
	l.parseMTU(ack)
	t := terms(ack.IPAddressRenewalTime(0), ack.IPAddressRebindingTime(0),
		ack.IPAddressLeaseTime(time.Hour), least)
	l.renew, l.rebind, l.ends = asked.Add(t.renew), asked.Add(t.rebind), asked.Add(t.ends)
	l.server, _ = netip.AddrFromSlice(ack.ServerIdentifier().To4())
	return l, nil
}

// leaseTerms says how long after it was asked for a lease is renewed, asked for from any server,
// and over.
type leaseTerms struct{ renew, rebind, ends time.Duration }

// terms makes of what a server says, T1, T2 and the lifetime, something that can be kept: in this
// order, least apart from now, and by default 1/2 and 7/8 of the lifetime (RFC 2131 section 4.4.5).
func terms(t1, t2, lasts, least time.Duration) leaseTerms {
	lasts = max(lasts, 2*least)
	if t1 <= 0 || t1 >= lasts {
		t1 = lasts / 2
	}
	t1 = max(t1, least)
	if t2 <= t1 || t2 >= lasts {
		t2 = t1 + (lasts-t1)/4*3 // in this order: 136 years times 3 is too much
	}
	return leaseTerms{t1, t2, lasts}
}

// parseRoutes are the routes an ACK has: option 121, or else the first router (RFC 3442), of which
// those remain whose next hop is another host and on the link.
func (l *lease) parseRoutes(ack *dhcpv4.DHCPv4) {
	var onLink, far []env.Route
	for _, r := range ack.ClasslessStaticRoute() {
		dst, ok := netip.AddrFromSlice(r.Dest.IP.To4())
		ones, size := r.Dest.Mask.Size()
		if !ok || size != 32 {
			continue
		}
		route := env.Route{Destination: netip.PrefixFrom(dst, ones).Masked()}
		if gateway := addrs([]net.IP{r.Router}); len(gateway) == 1 {
			route.Gateway = gateway[0]
			far = append(far, route)
		} else {
			onLink = append(onLink, route)
		}
	}
	if routers := addrs(ack.Router()); len(far)+len(onLink) == 0 && len(routers) > 0 {
		far = append(far, env.Route{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			Gateway: routers[0]})
	}
	near := func(a netip.Addr) bool {
		return l.prefix.Contains(a) || l.prefix.IsSingleIP() || slices.ContainsFunc(onLink,
			func(r env.Route) bool { return r.Destination.Bits() > 0 && r.Destination.Contains(a) })
	}
	l.routes = onLink
	for _, r := range far {
		switch {
		case r.Gateway == l.prefix.Addr():
			l.refused = append(l.refused,
				fmt.Sprintf("router %s, which is our own address", r.Gateway))
		case !near(r.Gateway):
			l.refused = append(l.refused, fmt.Sprintf("router %s, which is not in our subnet %s",
				r.Gateway, l.prefix.Masked()))
		default:
			l.routes = append(l.routes, r)
		}
	}
	if more := len(l.routes) - maxLeaseRoutes; more > 0 {
		l.refused = append(l.refused, fmt.Sprintf("%d routes more than %d", more, maxLeaseRoutes))
		l.routes = l.routes[:maxLeaseRoutes]
	}
}

// parseMTU takes option 26 (RFC 2132 section 5.1), unless the value is too small.
func (l *lease) parseMTU(ack *dhcpv4.DHCPv4) {
	given := ack.Options.Get(dhcpv4.OptionInterfaceMTU)
	if len(given) != 2 {
		return
	}
	if l.mtu = binary.BigEndian.Uint16(given); l.mtu < leastLeasedMTU {
		l.refused = append(l.refused, fmt.Sprintf("an MTU of %d bytes, where less than %d is "+
			"taken for an error of the server's", l.mtu, leastLeasedMTU))
		l.mtu = 0
	}
}

// addrs converts what are addresses of hosts.
func addrs(ips []net.IP) (out []netip.Addr) {
	for _, ip := range ips {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsUnspecified() && !a.IsMulticast() {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// renew implements protocol.
func (d *dhcp4) renew(l *lease) (*lease, error) {
	return d.extendUntil(l, l.rebind, d.unicast(l.server))
}

// rebind implements protocol.
func (d *dhcp4) rebind(l *lease) (*lease, error) {
	return d.extendUntil(l, l.ends, d.broadcast)
}

// extendUntil asks for the same address again until the deadline, by a number of its own each time:
// an answer from before may come twice. A message that cannot be sent is as good as one lost.
func (d *dhcp4) extendUntil(l *lease, deadline time.Time,
	send func(*dhcpv4.DHCPv4) error) (*lease, error) {
	for {
		request, err := dhcpv4.NewRenewFromAck(l.ack, d.newXID4(),
			dhcpv4.WithRequestedOptions(dhcpWanted...))
		if err != nil {
			return nil, err
		}
		next, err := d.extend(l, request, deadline, send,
			halving(d.env.Clock, deadline, d.cfg.Renewal))
		again := d.env.Clock.Now().Add(d.cfg.Renewal)
		if err == nil || errors.Is(err, errBadLease) || !again.Before(deadline) ||
			!d.pause(d.env.Ctx, d.cfg.Renewal) {
			return next, err
		}
	}
}

// confirm implements protocol (RFC 2131 section 3.2).
func (d *dhcp4) confirm(l *lease) *lease {
	request, err := dhcpv4.New(d.newXID4(), dhcpv4.WithHwAddr(l.ack.ClientHWAddr),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithBroadcast(true), dhcpv4.WithRequestedOptions(dhcpWanted...),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.prefix.Addr().AsSlice())))
	if err != nil {
		return l
	}
	deadline := d.env.Clock.Now().Add(confirmTime)
	if l.ends.Before(deadline) {
		deadline = l.ends
	}
	next, err := d.extend(l, request, deadline, d.broadcast,
		doubling(dhcpFirstWait, dhcpLongestWait))
	if err != nil && !errors.Is(err, errBadLease) && d.env.Clock.Now().Before(l.ends) {
		return l
	}
	return next
}

// extend sends a request for the lease we have until the deadline. An error that is
// errBadLease says that the lease is over.
func (d *dhcp4) extend(l *lease, request *dhcpv4.DHCPv4, deadline time.Time,
	send func(*dhcpv4.DHCPv4) error, repeat schedule) (*lease, error) {
	ctx, cancel := d.env.Clock.WithDeadline(d.env.Ctx, deadline)
	defer cancel()
	asked := d.env.Clock.Now()
	ack, err := d.ask(ctx, request, send, repeat, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil, err
	}
	next, err := parseLease4(ack, asked, d.cfg.Renewal)
	if err == nil && !next.server.IsValid() {
		next.server = l.server
	}
	return next, err
}
