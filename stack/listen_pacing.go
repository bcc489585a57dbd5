package stack

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// PacingRule gives connections of clients within a prefix a rate of their own, see
// [ListenConfig].PacingRules.
type PacingRule struct {
	Clients        netip.Prefix
	BytesPerSecond uint64 // of each connection, as for [TCPConn.SetPacing]; 0: no limit
}

// listenPacing holds the rates of what a listener accepts. It does not change.
type listenPacing struct {
	rate  uint64       // without a rule, bytes per second
	rules []PacingRule // longer prefixes first
}

// newListenPacing returns the rates of c's listeners. A prefix that is none is an error.
func newListenPacing(c *ListenConfig) (p listenPacing, err error) {
	p = listenPacing{rate: c.Pacing, rules: slices.Clone(c.PacingRules)}
	for i := range p.rules {
		clients := &p.rules[i].Clients
		if !clients.IsValid() {
			return p, fmt.Errorf("rule %d of PacingRules: %v is no prefix", i, *clients)
		}
		if a := clients.Addr(); a.Is4In6() && clients.Bits() >= mappedBits {
			*clients = netip.PrefixFrom(a.Unmap(), clients.Bits()-mappedBits)
		}
	}
	slices.SortStableFunc(p.rules, func(a, b PacingRule) int {
		return cmp.Compare(b.Clients.Bits(), a.Clients.Bits())
	})
	return p, nil
}

// mappedBits counts those in front of an IPv4 address in IPv6 (RFC 4291 section 2.5.5.2).
const mappedBits = 96

// rateFor returns the rate of a client's connection, in bytes per second; 0: no limit.
func (p *listenPacing) rateFor(client *net.TCPAddr) uint64 {
	if len(p.rules) > 0 {
		a, _ := netip.AddrFromSlice(client.IP)
		a = a.Unmap()
		for i := range p.rules {
			if p.rules[i].Clients.Contains(a) {
				return p.rules[i].BytesPerSecond
			}
		}
	}
	return p.rate
}
