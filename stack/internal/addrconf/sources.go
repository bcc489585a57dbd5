package addrconf

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Sources chooses the address that a packet leaves from if nobody names one, as Linux does.
// Netstack takes the address that has most leading bits in common with the destination.
//
// IPv4 (net/ipv4/devinet.c inet_select_addr): the source of the route if it has one, else the first
// address in whose subnet the next hop is, else the first. IPv6 (net/ipv6/addrconf.c
// ipv6_get_saddr_eval, RFC 6724 section 5): the source of the route, else the best by destination.
type Sources struct {
	Several4, Several6 atomic.Bool // there is more than one address to choose from
	// Kernel returns the choice of the kernel whose addresses these are; nil: they are not one's.
	// It is written before the link is in use.
	Kernel func(remote netip.Addr) netip.Addr
	// toAll is the hint for packets to IPv4 groups and to all hosts, which Linux sends by the
	// default route, though on the link; nil: none.
	toAll atomic.Pointer[tcpip.Address]
}

// count notes of each family whether it has several addresses, once they have changed.
func (s *Sources) count(all []netip.Prefix) {
	var v4, v6 int
	for _, p := range all {
		switch {
		case p.Addr().Is4():
			v4++
		case !p.Addr().IsLinkLocalUnicast():
			v6++
		}
	}
	s.Several4.Store(v4 > 1)
	s.Several6.Store(v6 > 1)
}

// Ambiguous says whether an answer to from, which sent to the address to, might leave from another
// address by itself.
func (s *Sources) Ambiguous(from, to tcpip.Address) bool {
	if to.Len() == header.IPv4AddressSize {
		return s.Several4.Load() && !header.IsV4LoopbackAddress(to)
	}
	return s.Several6.Load() || env.OnLink(from) != env.OnLink(to)
}

// hint returns what Choose4 and Choose6 have to know of a route.
func (s *Sources) hint(r env.Route) tcpip.Address {
	switch {
	case r.Source.IsValid():
		return env.ToAddress(r.Source)
	case r.Destination.Addr().Is4():
		return env.ToAddress(r.Gateway)
	}
	return tcpip.Address{}
}

// useRoutes takes over what it has to know of the routes, the ones with precedence first.
func (s *Sources) useRoutes(all []env.Route) {
	s.toAll.Store(nil)
	for _, r := range all {
		if r.Destination.Bits() == 0 && r.Destination.Addr().Is4() {
			hint := s.hint(r)
			s.toAll.Store(&hint)
			return
		}
	}
}

// Choose4 returns the address to send to remote from; the zero value: there is none. To an address
// of ours that is the first of its subnet, as fib_add_ifaddr of net/ipv4/fib_frontend.c has it.
func (s *Sources) Choose4(all []tcpip.AddressWithPrefix, remote, hint tcpip.Address) tcpip.Address {
	if a, ok := s.ofKernel(all, remote); ok {
		return a
	}
	if remote == header.IPv4Broadcast || header.IsV4MulticastAddress(remote) {
		if route := s.toAll.Load(); route != nil && hint.Len() == 0 {
			hint = *route
		}
	}
	if at := indexOf(all, remote); at >= 0 {
		for _, a := range all {
			if a.Subnet() == all[at].Subnet() {
				return a.Address
			}
		}
	}
	if indexOf(all, hint) >= 0 {
		return hint
	}
	for _, a := range all {
		if subnet := a.Subnet(); hint.Len() != 0 && subnet.Contains(hint) {
			return a.Address
		}
	}
	if len(all) > 0 {
		return all[0].Address
	}
	return tcpip.Address{}
}

// ofKernel returns the kernel's choice, if it is one of ours.
func (s *Sources) ofKernel(all []tcpip.AddressWithPrefix,
	remote tcpip.Address) (a tcpip.Address, ok bool) {
	if s.Kernel != nil && remote.Len() != 0 {
		a = env.ToAddress(s.Kernel(env.FromAddress(remote)))
	}
	return a, indexOf(all, a) >= 0
}

// indexOf returns where an address is in all; -1: nowhere.
func indexOf(all []tcpip.AddressWithPrefix, a tcpip.Address) int {
	return slices.IndexFunc(all, func(o tcpip.AddressWithPrefix) bool { return o.Address == a })
}

// Choose6 returns the address to send to remote from; the zero value: there is none, or no
// destination. all is in the order in which they were added; of equals the last is chosen, which
// Linux puts first (ipv6_link_dev_addr of net/ipv6/addrconf.c).
func (s *Sources) Choose6(all []tcpip.AddressWithPrefix, remote, hint tcpip.Address,
	deprecated func(tcpip.Address) bool) (best tcpip.Address) {
	if remote.Len() == 0 || remote.Unspecified() {
		return best
	}
	if a, ok := s.ofKernel(all, remote); ok {
		return a
	}
	if indexOf(all, hint) >= 0 {
		return hint
	}
	to := env.FromAddress(remote)
	var least sourceRank
	for _, a := range slices.Backward(all) {
		rank := rankSource(netip.PrefixFrom(env.FromAddress(a.Address), a.PrefixLen), to,
			deprecated(a.Address))
		if best.Len() == 0 || slices.Compare(rank[:], least[:]) < 0 {
			best, least = a.Address, rank
		}
	}
	return best
}

// sourceRank compares source addresses by the rules of RFC 6724 section 5, the first rule first;
// the least is the best.
type sourceRank [6]int

// rankSource ranks own as the source for packets to remote. Rules 4, 5 and 7 are about what a stack
// does not have: home agents, other interfaces, temporary addresses.
func rankSource(own netip.Prefix, remote netip.Addr, deprecated bool) (r sourceRank) {
	if own.Addr() != remote {
		r[0] = 1
	}
	need, scope := scopeOf(remote), scopeOf(own.Addr())
	if r[1] = scope; scope < need { // too small: the greater the better, and worse than any other
		r[1] = maxScope + need - scope
	}
	if deprecated {
		r[2] = 1
	}
	if labelOf(own.Addr()) != labelOf(remote) {
		r[3] = 1
	}
	if labelOf(own.Addr()) == orchid && labelOf(remote) != orchid { // before rule 8, on Linux
		r[4] = 1
	}
	r[5] = -min(commonBits(own.Addr(), remote), own.Bits())
	return r
}

// maxScope bounds the scopes of groups (RFC 4291 section 2.7).
const maxScope = 15

// scopeOf returns the scope of an IPv6 address in the numbers of groups (RFC 6724 section 3.1).
func scopeOf(a netip.Addr) int {
	const linkLocal, siteLocal, global = 2, 5, 14
	b := a.As16()
	switch {
	case a.IsMulticast():
		return int(b[1] & 0xf)
	case a.IsLinkLocalUnicast(), a.IsLoopback():
		return linkLocal
	case b[0] == 0xfe && b[1]&0xc0 == 0xc0:
		return siteLocal
	}
	return global
}

// orchid labels addresses that stand for keys (RFC 4843).
const orchid = 7

// labelOf returns the label of an IPv6 address by Linux's table (net/ipv6/addrlabel.c): a source
// with the destination's is better.
func labelOf(a netip.Addr) int {
	b := a.As16()
	switch {
	case a.IsLoopback():
		return 0
	case b[0]&0xfe == 0xfc:
		return 5
	case b[0] == 0xfe && b[1]&0xc0 == 0xc0:
		return 11
	case b[0] == 0x20 && b[1] == 0x02:
		return 2
	case b[0] == 0x3f && b[1] == 0xfe:
		return 12
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3]&0xf0 == 0x10:
		return orchid
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0:
		return 6
	case [12]byte(b[:12]) == [12]byte{}:
		return 3
	}
	return 1
}

// commonBits returns how many leading bits two IPv6 addresses have in common.
func commonBits(a, b netip.Addr) int {
	x := env.ToAddress(a)
	return int(x.MatchingPrefix(env.ToAddress(b)))
}
