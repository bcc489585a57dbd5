// Package filter decides which packets of a link go further, by a list of rules in a part of the
// language of nft(8): the host's own packet filter does not see the packets of a stack in the
// process.
//
//	table inet filter {
//		chain input {
//			type filter hook input priority filter; policy drop;
//			ip saddr { 198.51.100.0/24, 203.0.113.7 } drop comment "scanners"
//			tcp dport { 80, 443 } accept
//			icmp type echo-request accept
//			ip6 saddr 2001:db8::/32 udp dport 5000-5010 accept
//		}
//		chain output {
//			type filter hook output priority filter; policy accept;
//			ip daddr 169.254.169.254 drop
//		}
//	}
//
// nft reads the same text, and means the same by it but for what docs/firewall.md lists. The first
// rule that matches decides, or else the policy of the chain.
//
// A list is compiled at each change (compile.go): source addresses become intervals with a direct
// index (index.go, runs.go), each with the rules that may match there, so that the number of
// prefixes does not count, and with a table of what becomes of TCP and UDP by destination port
// (decisions.go).
// Batch judges most packets by these two looks alone. Filter has the compiled form, for any number
// of endpoints; a change of the list is seen by each packet as a whole.
//
// What cannot be decided from a packet alone is asked last: answers to what this host has begun,
// errors about what is let in, and later fragments. flows.go remembers for it.
package filter
