// Package firewall finds rules of the host's packet filter and NAT that do not go together with a
// server on the host's own address (stack.Config.Host), whose packets these rules do not see. It
// reads what iptables-save(8), ip6tables-save(8) and nft(8) print, and changes nothing.
package firewall

import (
	"fmt"
	"slices"
)

// Ports are those of a server.
type Ports struct {
	Netdev      string
	Listen      []uint16 // of TCP or UDP
	First, Last uint16   // what it connects from
}

// firstInRange returns the first port of ours in a range of a rule; ok is false if there is none.
func (p Ports) firstInRange(first, last int) (port int, ok bool) {
	for _, l := range p.Listen {
		if first <= int(l) && int(l) <= last {
			return int(l), true
		}
	}
	return 0, false
}

// randomPorts returns the line about NAT that chooses ports at random.
func (p Ports) randomPorts(where string) string {
	return fmt.Sprintf("%s gives connections random ports, and the answers to those from %d to %d "+
		"come to this server: limit it to ports below %[2]d", where, p.First, p.Last)
}

// redirects returns the line about NAT of a port that we serve.
func (p Ports) redirects(where string, port int) string {
	return fmt.Sprintf("%s leads port %d elsewhere, which is not done to what comes by %s: that "+
		"is this server's", where, port, p.Netdev)
}

// ruleLine returns the line about a rule for a port that we serve.
func (p Ports) ruleLine(where string, port int) string {
	return fmt.Sprintf("%s is about port %d, and has no effect on what comes by %s for this server",
		where, port, p.Netdev)
}

// withoutRepeats leaves out lines that are there already.
func withoutRepeats(lines []string) (list []string) {
	for _, l := range lines {
		if !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	return list
}
