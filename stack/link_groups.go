package stack

import (
	"maps"
	"net"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Behind an e-switch a port gets only the multicast that its netdev lists, neighbour solicitations
// included. Netstack tells its links nothing about groups, so its network endpoints are wrapped:
// what changes is noted there, and told to the link without netstack's locks.

// memberships is the groups that sockets have joined. The others follow from our addresses.
type memberships struct {
	changed chan struct{} // capacity 1: groups or addresses have changed

	telling sync.Mutex // held while the link is told
	mu      sync.Mutex
	joined  map[tcpip.Address]int // guarded by mu
}

func newMemberships() *memberships {
	return &memberships{changed: make(chan struct{}, 1), joined: map[tcpip.Address]int{}}
}

// count notes that netstack has joined a group once more, or once less.
func (m *memberships) count(group tcpip.Address, change int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.joined[group] += change; m.joined[group] <= 0 {
		delete(m.joined, group)
	}
	env.Notify(m.changed)
}

// groups lists what sockets have joined, in order.
func (m *memberships) groups() []tcpip.Address {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.joined), func(a, b tcpip.Address) int {
		return slices.Compare(a.AsSlice(), b.AsSlice())
	})
}

// tellGroups tells the link which groups we are in. It must not be called with locks of netstack
// held.
func (s *addressManager) tellGroups() {
	if s.stack.link == nil {
		return
	}
	s.memberships.telling.Lock()
	defer s.memberships.telling.Unlock()
	if err := s.stack.link.SetGroups(s.groups()); err != nil {
		s.env.Log.Warn("the port does not take all our multicast groups", "interface", s.env.Name,
			"error", err)
	}
}

// groups returns the Ethernet addresses of our groups: all hosts, those of neighbour discovery for
// our addresses (RFC 4861 section 7.2.1), and what sockets have joined.
func (s *addressManager) groups() (macs []net.HardwareAddr) {
	groups := []tcpip.Address{header.IPv6AllNodesMulticastAddress, header.IPv4AllSystems}
	for _, p := range s.stack.Addrs() {
		if p.Addr().Is6() {
			groups = append(groups, header.SolicitedNodeAddr(toAddress(p.Addr())))
		}
	}
	have := map[tcpip.LinkAddress]bool{}
	for _, g := range append(groups, s.memberships.groups()...) {
		if mac := groupMAC(g); !have[mac] {
			have[mac] = true
			macs = append(macs, net.HardwareAddr(mac))
		}
	}
	return macs
}

// groupMAC returns the Ethernet address of a group (RFC 1112 section 6.4, RFC 2464 section 7).
func groupMAC(group tcpip.Address) tcpip.LinkAddress {
	if group.Len() == header.IPv4AddressSize {
		return header.EthernetAddressFromMulticastIPv4Address(group)
	}
	return header.EthernetAddressFromMulticastIPv6Address(group)
}

// wrapProtocol applies wrap to what factory makes, if netstack finds all it wants in it.
func wrapProtocol[Whole gstack.NetworkProtocol](factory gstack.NetworkProtocolFactory,
	wrap func(Whole) gstack.NetworkProtocol) gstack.NetworkProtocolFactory {
	return func(g *gstack.Stack) gstack.NetworkProtocol {
		p := factory(g)
		if whole, ok := p.(Whole); ok {
			return wrap(whole)
		}
		return p
	}
}

// watchIPv4 wraps netstack's IPv4 so that m notes which groups are joined, e what is sent and
// received, that n holds packets for hosts that are not resolved yet, and that s chooses sources.
// limit is the largest packet besides the link's MTU; nil: there never is a limit.
func (m *memberships) watchIPv4(factory gstack.NetworkProtocolFactory, n *neighbours,
	s *sources, limit func() uint32, e *icmpErrors) gstack.NetworkProtocolFactory {
	return wrapProtocol(factory, func(p ipv4Whole) gstack.NetworkProtocol {
		return ipv4Watched{p, m, n, s, limit, e}
	})
}

// ipv4Whole is what netstack wants of the IPv4 protocol.
type ipv4Whole interface {
	gstack.NetworkProtocol
	gstack.MulticastForwardingNetworkProtocol
	gstack.RejectIPv4WithHandler
}

// ipv4Watched is netstack's IPv4, with joins noted.
type ipv4Watched struct {
	ipv4Whole
	memberships *memberships
	neighbours  *neighbours
	sources     *sources
	limit       func() uint32
	errors      *icmpErrors
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p ipv4Watched) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	d = p.errors.dispatch(false, d)
	if nic.ID() != nicID {
		return p.ipv4Whole.NewEndpoint(nic, d)
	}
	i := &neighbourNIC{NetworkInterface: limitMTU(nic, p.limit), table: p.neighbours,
		protocol: ipv4Protocol}
	ep := p.ipv4Whole.NewEndpoint(i, d)
	if full, ok := ep.(ipv4Host); ok {
		i.failed = full.HandleLinkResolutionFailure
		return &ipv4Endpoint{full, nic, p.memberships, p.sources, p.errors}
	}
	return ep
}

// ipv4Host is what netstack wants of an IPv4 endpoint.
type ipv4Host interface {
	gstack.NetworkEndpoint
	gstack.AddressableEndpoint
	gstack.GroupAddressableEndpoint
	gstack.LinkResolvableNetworkEndpoint
	gstack.ForwardingNetworkEndpoint
	gstack.MulticastForwardingNetworkEndpoint
	ipv4.IGMPEndpoint
}

// ipv4Endpoint is netstack's IPv4 on one interface, with joins noted.
type ipv4Endpoint struct {
	ipv4Host
	nic         gstack.NetworkInterface
	memberships *memberships
	sources     *sources
	errors      *icmpErrors
}

// JoinGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv4Endpoint) JoinGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv4Host.JoinGroup(group)
	if err == nil {
		e.memberships.count(group, 1)
	}
	return err
}

// LeaveGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv4Endpoint) LeaveGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv4Host.LeaveGroup(group)
	if err == nil {
		e.memberships.count(group, -1)
	}
	return err
}

// JoinGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv6Endpoint) JoinGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv6Host.JoinGroup(group)
	if err == nil {
		e.watch.memberships.count(group, 1)
	}
	return err
}

// LeaveGroup implements gstack.GroupAddressableEndpoint.
func (e *ipv6Endpoint) LeaveGroup(group tcpip.Address) tcpip.Error {
	err := e.ipv6Host.LeaveGroup(group)
	if err == nil {
		e.watch.memberships.count(group, -1)
	}
	return err
}

// AddAndAcquirePermanentAddress implements gstack.AddressableEndpoint: an address has a group.
func (e *ipv6Endpoint) AddAndAcquirePermanentAddress(a tcpip.AddressWithPrefix,
	p gstack.AddressProperties) (gstack.AddressEndpoint, tcpip.Error) {
	defer env.Notify(e.watch.memberships.changed)
	return e.ipv6Host.AddAndAcquirePermanentAddress(a, p)
}

// RemovePermanentAddress implements gstack.AddressableEndpoint.
func (e *ipv6Endpoint) RemovePermanentAddress(a tcpip.Address) tcpip.Error {
	defer env.Notify(e.watch.memberships.changed)
	return e.ipv6Host.RemovePermanentAddress(a)
}
