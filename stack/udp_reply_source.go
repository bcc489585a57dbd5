package stack

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A datagram is answered from the address it was sent to. Usually netstack's own choice of source
// is that address; where it need not be, a wildcard socket remembers what each peer has sent to.

// maxReplySources bounds that memory, per socket. A peer that is forgotten between its query and
// our answer gets the answer from the address netstack chooses, which is what Linux does for
// everybody.
const maxReplySources = 4096

// addressCounts says whether netstack has a choice of source addresses, by version of IP.
type addressCounts struct {
	several4, several6 atomic.Bool // there is more than one address to choose from
}

// count is called when the addresses have changed.
func (o *addressCounts) count(all []netip.Prefix) {
	var v4, v6 int
	for _, p := range all {
		switch {
		case p.Addr().Is4():
			v4++
		case !p.Addr().IsLinkLocalUnicast():
			v6++
		}
	}
	o.several4.Store(v4 > 1)
	o.several6.Store(v6 > 1)
}

// ambiguous says whether an answer to from, which sent to the address to, might leave from another
// address by itself.
func (o *addressCounts) ambiguous(from, to tcpip.Address) bool {
	if to.Len() == header.IPv4AddressSize {
		return o.several4.Load() && !header.IsV4LoopbackAddress(to)
	}
	return o.several6.Load() || onLink(from) != onLink(to)
}

// replySources has the local address that each peer has sent to.
type replySources struct {
	mu    sync.RWMutex
	peers map[peerKey]tcpip.Address // guarded by mu; nil until there is an entry
}

type peerKey struct {
	addr tcpip.Address
	port uint16
}

// remember stores that from has sent to the address to, if a reply might leave from another.
func (o *replySources) remember(s *Stack, from tcpip.FullAddress, to tcpip.Address) {
	if to.Len() == 0 || !s.addressCounts.ambiguous(from.Addr, to) || !s.owns(to) {
		return
	}
	key := peerKey{from.Addr, from.Port}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.peers == nil {
		o.peers = make(map[peerKey]tcpip.Address)
	}
	if len(o.peers) >= maxReplySources {
		for old := range o.peers { // any one: map order is random
			delete(o.peers, old)
			break
		}
	}
	o.peers[key] = to
}

// sourceFor is the address from which to reply to a peer, or "any" where netstack chooses.
func (o *replySources) sourceFor(to tcpip.FullAddress) tcpip.Address {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.peers[peerKey{to.Addr, to.Port}]
}

// owns says whether a is a unicast address of ours: not a group, not a broadcast address.
func (s *Stack) owns(a tcpip.Address) bool {
	protocol := ipv6Protocol
	if a.Len() == header.IPv4AddressSize {
		protocol = ipv4Protocol
	}
	return s.net.CheckLocalAddress(0, protocol, a) != 0
}
