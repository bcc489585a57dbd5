package stack

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	// leastRenewal is the least time between two renewals (RFC 2131 section 4.4.5). No lease is
	// taken to be shorter than two.
	leastRenewal = time.Minute
	// Bounds of what one answer tells.
	maxLeaseRoutes  = 32
	maxLeaseServers = 8
)

// lease4 is what a DHCPv4 server gave us.
type lease4 struct {
	ack                 *dhcpv4.DHCPv4
	prefix              netip.Prefix
	routes              []Route
	dns                 []netip.Addr
	server              netip.Addr
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
	t := terms(ack.IPAddressRenewalTime(0), ack.IPAddressRebindingTime(0),
		ack.IPAddressLeaseTime(time.Hour), least)
	l.renew, l.rebind, l.ends = asked.Add(t.renew), asked.Add(t.rebind), asked.Add(t.ends)
	l.server, _ = netip.AddrFromSlice(ack.ServerIdentifier().To4())
	return l, nil
}

// leaseTerms are how long after it was asked for a lease is renewed, asked for from any server, and
// over.
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
		return l.prefix.Contains(a) || slices.ContainsFunc(onLink,
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

// addrs converts what are addresses of hosts.
func addrs(ips []net.IP) (out []netip.Addr) {
	for _, ip := range ips {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsUnspecified() && !a.IsMulticast() {
			out = append(out, a.Unmap())
		}
	}
	return out
}
