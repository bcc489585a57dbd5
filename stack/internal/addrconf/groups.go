package addrconf

import (
	"maps"
	"net"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Behind an e-switch a port gets only the multicast that its netdev lists, neighbour solicitations
// included. Netstack tells its links nothing about groups, so its network endpoints are wrapped:
// what changes is noted there, and told to the link without netstack's locks.

// memberships holds the groups that sockets have joined. The others follow from our addresses.
type memberships struct {
	changed chan struct{} // capacity 1: groups or addresses have changed

	telling sync.Mutex // held while the link is told
	mu      sync.Mutex
	joined  map[tcpip.Address]int // guarded by mu
}

// CountGroup notes that netstack has joined a group once more, or once less.
func (s *Manager) CountGroup(group tcpip.Address, change int) {
	m := s.memberships
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.joined[group] += change; m.joined[group] <= 0 {
		delete(m.joined, group)
	}
	env.Notify(m.changed)
}

// GroupsChanged notes that netstack has joined or left the group of an address.
func (s *Manager) GroupsChanged() { env.Notify(s.memberships.changed) }

// groups lists what sockets have joined, in order.
func (m *memberships) groups() []tcpip.Address {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.joined), func(a, b tcpip.Address) int {
		return slices.Compare(a.AsSlice(), b.AsSlice())
	})
}

// TellGroups tells the link which groups we are in. It must not be called with locks of netstack
// held.
func (s *Manager) TellGroups() {
	s.memberships.telling.Lock()
	defer s.memberships.telling.Unlock()
	if err := s.host.SetGroups(s.groups()); err != nil {
		s.env.Log.Warn("the port does not take all our multicast groups", "interface", s.env.Name,
			"error", err)
	}
}

// groups returns the Ethernet addresses of our groups: all hosts, those of neighbour discovery for
// our addresses (RFC 4861 section 7.2.1), and what sockets have joined.
func (s *Manager) groups() (macs []net.HardwareAddr) {
	groups := []tcpip.Address{header.IPv6AllNodesMulticastAddress, header.IPv4AllSystems}
	for _, p := range s.Addrs() {
		if p.Addr().Is6() {
			groups = append(groups, header.SolicitedNodeAddr(env.ToAddress(p.Addr())))
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
