package stack

import (
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
)

// How long what a server told without giving an address is good, if it does not say, and at least
// (RFC 8415 section 7.6).
const (
	informedFor   = 24 * time.Hour
	informedLeast = 10 * time.Minute
)

// refreshDHCP6Info asks DHCPv6 servers for resolvers, but no addresses, as long as the stack lives
// (RFC 8415 section 18.2.6).
func (s *Stack) refreshDHCP6Info() {
	d, err := openDHCP6(s)
	if err != nil {
		s.log.Warn("ask for resolvers", "interface", s.name, "error", err)
		return
	}
	defer d.close()
	for {
		reply, err := d.inform()
		if err != nil {
			return // the stack ends
		}
		if err := s.applyAutoconf(fromDHCPv6, nil, addrs(reply.Options.DNS())); err != nil {
			s.log.Warn("resolvers from DHCPv6", "interface", s.name, "error", err)
		}
		again := s.clock.Now().Add(max(reply.Options.InformationRefreshTime(informedFor),
			informedLeast))
		if s.awaitTime(s.ctx, again, d.linkUp) == stackEnded {
			return
		}
	}
}

// inform is INFORMATION-REQUEST, REPLY.
func (d *dhcp6) inform() (*dhcpv6.Message, error) {
	m := d.s.renumber6(&dhcpv6.Message{MessageType: dhcpv6.MessageTypeInformationRequest})
	m.AddOption(dhcpv6.OptRequestedOption(dhcpv6.OptionDNSRecursiveNameServer,
		dhcpv6.OptionInformationRefreshTime))
	m.AddOption(dhcpv6.OptElapsedTime(0))
	return d.ask(d.s.ctx, m, doubling(dhcpFirstWait, dhcpLongestWait), dhcpv6.MessageTypeReply)
}
