package stack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Ports of DHCP (RFC 2131 section 4.1).
const (
	dhcpServerPort = 67
	dhcpClientPort = 68
)

// dhcpFirstWait is how long the first message is given; each repetition doubles it, up to
// dhcpLongestWait (RFC 2131 section 4.1, which begins with 4 s).
const (
	dhcpFirstWait   = time.Second
	dhcpLongestWait = 64 * time.Second
)

// declineWait says how long a client waits after a DECLINE before it begins again (RFC 2131 section
// 3.1 point 5).
const declineWait = 10 * time.Second

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

// dhcp4 is the DHCPv4 client. One goroutine at a time uses it.
type dhcp4 struct {
	s      *addressManager
	conn   *UDPConn
	linkUp chan struct{} // the link is up again
	lease  *lease4       // nil until acquire succeeds
}

// newDHCP4 opens the client's port. Close ends it.
func newDHCP4(s *addressManager) (dhcpClient, error) {
	if err := s.hasMAC(); err != nil {
		return nil, err
	}
	c, err := s.stack.ListenUDP("udp4", &net.UDPAddr{Port: dhcpClientPort})
	if err != nil {
		return nil, fmt.Errorf("open the DHCP client's port: %w", err)
	}
	return &dhcp4{s: s, conn: c, linkUp: s.linkUp.add()}, nil
}

// hasMAC refuses to ask for an address on a link where servers have nothing to tell us by.
func (s *addressManager) hasMAC() error {
	if len(s.stack.HardwareAddr()) == 0 {
		return errors.New("the link has no hardware address, by which DHCP tells hosts apart; " +
			"give Addresses instead")
	}
	return nil
}

// close implements dhcpClient.
func (d *dhcp4) close() { d.conn.Close() }

// acquire implements dhcpClient. After a refusal it begins again, each time later; after an address
// that is in use 10 s later, but as after a refusal where ctx leaves no time for that.
func (d *dhcp4) acquire(ctx context.Context) error {
	later := doubling(dhcpFirstWait, dhcpLongestWait)
	for wait := later(0); ; wait = later(wait) {
		l, err := d.offer(ctx)
		if err == nil {
			if err = d.s.useAddress(ctx, l.prefix); err == nil {
				d.lease = l
				return d.use(l)
			}
		}
		pause := d.s.jitter(wait)
		switch {
		case errors.Is(err, ErrDuplicateAddress):
			d.decline(l)
			enough := d.s.cfg.declineWait + dhcpFirstWait + max(d.s.cfg.DuplicateDetection, 0)
			if end, limited := ctx.Deadline(); !limited || d.s.env.Clock.Until(end) > enough {
				pause = max(pause, d.s.cfg.declineWait)
			}
		case !errors.Is(err, errBadLease):
			return err
		}
		d.s.dhcp.refused.Add(1)
		d.s.env.Log.Warn("DHCP", "interface", d.s.env.Name, "error", err)
		if !d.s.pause(ctx, pause) {
			return noLease(ctx, d.s, err)
		}
	}
}

// noLease returns the error of a client whose ctx has ended.
func noLease(ctx context.Context, s *addressManager, last error) error {
	return fmt.Errorf("%w on %s: %w (%w)", ErrNoLease, s.env.Name, context.Cause(ctx), last)
}

// use takes what came with the address into use.
func (d *dhcp4) use(l *lease4) error {
	for _, r := range l.refused {
		d.s.dhcp.refused.Add(1)
		d.s.env.Log.Warn("DHCP: refused", "interface", d.s.env.Name, "what", r)
	}
	d.s.stack.mtu.useLeased(l.mtu)
	routes := append([]Route{connected(l.prefix)}, l.routes...)
	return d.s.applyAutoconf(fromDHCPv4, routes, l.dns)
}

// offer is DISCOVER, OFFER, REQUEST, ACK.
func (d *dhcp4) offer(ctx context.Context) (*lease4, error) {
	discover, err := dhcpv4.NewDiscovery(d.s.stack.HardwareAddr(), d.s.newXID4(),
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
	asked := d.s.env.Clock.Now()
	ack, err := d.ask(ctx, request, d.broadcast, repeat,
		dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil, err
	}
	return parseLease4(ack, asked, d.s.cfg.renewal)
}

// decline tells the server that somebody uses the address (RFC 2131 section 3.1 step 5).
func (d *dhcp4) decline(l *lease4) {
	m, err := dhcpv4.New(d.s.newXID4(), dhcpv4.WithHwAddr(l.ack.ClientHWAddr),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.prefix.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.server.AsSlice())))
	if err == nil {
		d.broadcast(m)
	}
}

// ask sends m, as often as repeat has it, until an answer of one of the wanted types comes or ctx
// ends. When the link comes up, repeat begins anew: what was sent before went nowhere. What there
// is no room for in the ring, as on a port that is paused, is as good as lost.
func (d *dhcp4) ask(ctx context.Context, m *dhcpv4.DHCPv4, send func(*dhcpv4.DHCPv4) error,
	repeat schedule, want ...dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	stop := context.AfterFunc(ctx, func() { d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for wait := repeat(0); ; {
		d.s.dhcp.sent.Add(1)
		if err := send(m); err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return nil, fmt.Errorf("send %v: %w", m.MessageType(), err)
		}
		d.conn.SetReadDeadline(d.s.env.Clock.Now().Add(d.s.jitter(wait)))
		linkCame := readUntilLinkUp(d.conn, d.linkUp)
		answer := d.answer(ctx, m, want)
		if wait = repeat(wait); linkCame() {
			wait = repeat(0)
			defer notify(d.linkUp) // the answer may be of the link before: it is to be confirmed
		}
		if answer != nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w on %s: %w", ErrNoLease, d.s.env.Name, context.Cause(ctx))
		}
	}
}

// answer returns the answer to a message of ours, or nil at the deadline of reads. Both have the
// hardware address that was ours when a lease was first asked for, by which the server knows us:
// that of the netdev may be another now.
func (d *dhcp4) answer(ctx context.Context, to *dhcpv4.DHCPv4,
	want []dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	for ctx.Err() == nil {
		m, err := d.read()
		if err != nil {
			return nil
		}
		if m.TransactionID == to.TransactionID && slices.Contains(want, m.MessageType()) &&
			bytes.Equal(m.ClientHWAddr, to.ClientHWAddr) {
			return m
		}
	}
	return nil
}

// read returns the next answer of a server. An error is one of the socket.
func (d *dhcp4) read() (*dhcpv4.DHCPv4, error) {
	buf := make([]byte, 1500)
	for {
		n, err := d.conn.Read(buf)
		if err != nil {
			return nil, err
		}
		m, err := dhcpv4.FromBytes(buf[:n])
		if err == nil && m.OpCode == dhcpv4.OpcodeBootReply {
			return m, nil
		}
	}
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
	return asError("broadcast", d.s.env.Net.WritePacketToRemote(nicID,
		header.EthernetBroadcastAddress,
		ipv4Protocol, buffer.MakeWithData(packet)))
}

// unicast sends to one server, from the address it gave.
func (d *dhcp4) unicast(server netip.Addr) func(*dhcpv4.DHCPv4) error {
	return func(m *dhcpv4.DHCPv4) error {
		_, err := d.conn.WriteTo(m.ToBytes(),
			&net.UDPAddr{IP: server.AsSlice(), Port: dhcpServerPort})
		return err
	}
}

const (
	// leastRenewal gives the least time between two renewals (RFC 2131 section 4.4.5). No lease is
	// taken to be shorter than two.
	leastRenewal = time.Minute
	// Bounds of what one answer tells.
	maxLeaseRoutes  = 32
	maxLeaseServers = 8
)

// lease4 holds what a DHCPv4 server gave us.
type lease4 struct {
	ack                 *dhcpv4.DHCPv4
	prefix              netip.Prefix
	routes              []Route
	dns                 []netip.Addr
	server              netip.Addr
	mtu                 uint16 // 0: none
	renew, rebind, ends time.Time
	refused             []string // what came with it and cannot be
}

// parseLease4 takes an ACK apart that answers what was asked then. least is the least time between
// renewals.
func parseLease4(ack *dhcpv4.DHCPv4, asked time.Time, least time.Duration) (*lease4, error) {
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
	if !ok || checkAddress(netip.PrefixFrom(addr, ones)) != nil {
		return nil, fmt.Errorf("%w: the server gave %v with mask %v",
			errBadLease, ack.YourIPAddr, mask)
	}
	l := &lease4{ack: ack, prefix: netip.PrefixFrom(addr, ones), dns: addrs(ack.DNS())}
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
func (l *lease4) parseRoutes(ack *dhcpv4.DHCPv4) {
	var onLink, far []Route
	for _, r := range ack.ClasslessStaticRoute() {
		dst, ok := netip.AddrFromSlice(r.Dest.IP.To4())
		ones, size := r.Dest.Mask.Size()
		if !ok || size != 32 {
			continue
		}
		route := Route{Destination: netip.PrefixFrom(dst, ones).Masked()}
		if gateway := addrs([]net.IP{r.Router}); len(gateway) == 1 {
			route.Gateway = gateway[0]
			far = append(far, route)
		} else {
			onLink = append(onLink, route)
		}
	}
	if routers := addrs(ack.Router()); len(far)+len(onLink) == 0 && len(routers) > 0 {
		far = append(far, Route{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			Gateway: routers[0]})
	}
	near := func(a netip.Addr) bool {
		return l.prefix.Contains(a) || l.prefix.IsSingleIP() || slices.ContainsFunc(onLink,
			func(r Route) bool { return r.Destination.Bits() > 0 && r.Destination.Contains(a) })
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
func (l *lease4) parseMTU(ack *dhcpv4.DHCPv4) {
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

// confirmTime says how long servers are asked, when the link is up again, whether the address is
// still ours.
const confirmTime = 10 * time.Second

// keep implements dhcpClient: it renews the lease from the server that gave it, then from any, and
// when it has run out the address is given up and another asked for (RFC 2131 section 4.4.5).
// Connections go on when it is the same address again.
func (d *dhcp4) keep() {
	for d.s.env.Ctx.Err() == nil {
		next := d.awaitRenewal(d.lease)
		if next != nil && d.replaceLease(next) {
			continue
		}
		if d.s.env.Ctx.Err() != nil {
			return
		}
		old := d.lease.prefix
		d.s.env.Log.Warn("the DHCP lease is over", "interface", d.s.env.Name, "address",
			old.String())
		d.s.removeAddress(old)
		d.s.applyAutoconf(fromDHCPv4, nil, nil)
		d.s.stack.mtu.useLeased(0)
		if err := d.acquire(d.s.env.Ctx); err != nil {
			d.s.env.Log.Warn("DHCP", "interface", d.s.env.Name, "error", err)
			d.s.pause(d.s.env.Ctx, dhcpLongestWait)
		}
		if d.lease.prefix.Addr() != old.Addr() {
			d.s.abortConnectionsOf(old.Addr())
		}
	}
}

// replaceLease replaces the lease by a renewed one, unless the address of that cannot be used.
func (d *dhcp4) replaceLease(l *lease4) bool {
	if l.prefix != d.lease.prefix {
		if err := d.s.useAddress(d.s.env.Ctx, l.prefix); err != nil {
			d.s.env.Log.Warn("a renewed address", "interface", d.s.env.Name, "error", err)
			if errors.Is(err, ErrDuplicateAddress) {
				d.decline(l)
				d.s.pause(d.s.env.Ctx, d.s.cfg.declineWait)
			}
			return false
		}
		d.s.abortConnectionsOf(d.lease.prefix.Addr())
		d.s.removeAddress(d.lease.prefix)
		d.s.abortConnectionsOf(d.lease.prefix.Addr()) // what came before it was gone
	}
	if err := d.use(l); err != nil {
		d.s.env.Log.Warn("what came with a lease", "interface", d.s.env.Name, "error", err)
	}
	d.lease = l
	return true
}

// awaitRenewal waits for the time to renew, or until the link comes up again, and returns the lease
// as it is then; nil when it is over or the stack ends.
func (d *dhcp4) awaitRenewal(l *lease4) *lease4 {
	switch d.s.awaitTime(d.s.env.Ctx, l.renew, d.linkUp) {
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
			halving(d.s.env.Clock, deadline, d.s.cfg.renewal))
		again := d.s.env.Clock.Now().Add(d.s.cfg.renewal)
		if err == nil || errors.Is(err, errBadLease) || !again.Before(deadline) ||
			!d.s.pause(d.s.env.Ctx, d.s.cfg.renewal) {
			return next, err
		}
	}
}

// confirm asks whether the address is good for the link we are on now (RFC 2131 section 3.2).
// Without an answer it is.
func (d *dhcp4) confirm(l *lease4) *lease4 {
	request, err := dhcpv4.New(d.s.newXID4(), dhcpv4.WithHwAddr(l.ack.ClientHWAddr),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithBroadcast(true), dhcpv4.WithRequestedOptions(dhcpWanted...),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.prefix.Addr().AsSlice())))
	if err != nil {
		return l
	}
	deadline := d.s.env.Clock.Now().Add(confirmTime)
	if l.ends.Before(deadline) {
		deadline = l.ends
	}
	next, err := d.extend(l, request, deadline, d.broadcast,
		doubling(dhcpFirstWait, dhcpLongestWait))
	if err != nil && !errors.Is(err, errBadLease) && d.s.env.Clock.Now().Before(l.ends) {
		return l
	}
	return next
}

// extend sends a request for the lease we have until the deadline. An error that is
// errBadLease says that the lease is over.
func (d *dhcp4) extend(l *lease4, request *dhcpv4.DHCPv4, deadline time.Time,
	send func(*dhcpv4.DHCPv4) error, repeat schedule) (*lease4, error) {
	ctx, cancel := d.s.env.Clock.WithDeadline(d.s.env.Ctx, deadline)
	defer cancel()
	asked := d.s.env.Clock.Now()
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
