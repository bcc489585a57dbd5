package tcp

import (
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// messages are what routers' messages do.
func messages() []row {
	return []row{
		{name: "a smaller path MTU has the segments sent again, smaller (IPv4)",
			source: "RFC 1191 3; packetdrill: fragmentation needed", only: 4,
			script: `
				0      open mss 1460
				       write 2920
				       > A 1+1460 ack 1
				       > PA 1461+1460 ack 1
				10ms   < icmp toobig 1200 seq 1
				       > A 1+1160 ack 1
				       > A 1161+1160 ack 1
				       > PA 2321+600 ack 1
				20ms   < A 1 ack 2921
				       write 1200
				       > A 2921+1160 ack 1
				       > PA 4081+40 ack 1
				30ms   < A 1 ack 4121`},
		{name: "a smaller path MTU has the segments sent again, smaller (IPv6)",
			source: "RFC 8201 4; packetdrill: packet too big", only: 6,
			script: `
				0      open mss 1440
				       write 2880
				       > A 1+1440 ack 1
				       > PA 1441+1440 ack 1
				10ms   < icmp toobig 1300 seq 1
				       > A 1+1240 ack 1
				       > A 1241+1240 ack 1
				       > PA 2481+400 ack 1
				20ms   < A 1 ack 2881`},
		{name: "a larger path MTU changes nothing",
			source: "RFC 8201 4",
			script: `
				0      open mss own
				       write 100
				       > PA 1+100 ack 1
				10ms   < icmp toobig 9000 seq 1
				20ms   < A 1 ack 101`},
		{name: "a path MTU below the least that there is counts as 552 (IPv4)",
			source: "net.ipv4.route.min_pmtu; docs/netstack-workarounds.md: path_mtu_fix.go",
			only:   4,
			script: `
				0      open mss 1000
				       write 1000
				       > PA 1+1000 ack 1
				10ms   < icmp toobig 60 seq 1
				       > A 1+512 ack 1
				       > PA 513+488 ack 1
				20ms   < A 1 ack 1001`},
		{name: "a path MTU below the least that there is counts as 1280 (IPv6)",
			source: "RFC 8201 4; docs/netstack-workarounds.md: path_mtu_fix.go", only: 6,
			linux: "discards the message, net/ipv6/route.c __ip6_rt_update_pmtu",
			script: `
				0      open mss 1440
				       write 1440
				       > PA 1+1440 ack 1
				10ms   < icmp toobig 1000 seq 1
				       > A 1+1220 ack 1
				       > PA 1221+220 ack 1
				20ms   < A 1 ack 1441`},
		{name: "a message about what was not sent is nothing",
			source: "RFC 5927 4.1; docs/netstack-workarounds.md: forged_icmp.go",
			script: `
				0      open mss 1000
				       write 1000
				       > PA 1+1000 ack 1
				10ms   < icmp toobig 1280 seq 1002
				       < icmp toobig 1280 seq -70000000
				       < icmp toobig 600 seq 1000000000
				       count forged 3
				20ms   < A 1 ack 1001
				       write 1000
				       > PA 1001+1000 ack 1
				30ms   < A 1 ack 2001`},
		{name: "a message about another SYN does not end a dial",
			source: "RFC 5927 4.1, 5.2; docs/netstack-workarounds.md: forged_icmp.go",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp port seq -1 port 8000
				       < icmp net seq 2 port 8000
				       < icmp proto seq 1000 port 8000
				       count forged 3
				20ms   < SA 0 ack 1 mss 1000
				       > A 1 ack 1
				       done dial`},
		{name: "a port that is unreachable refuses a connection",
			source: "RFC 5461 2, RFC 9293 3.9.2.2; packetimpact: ICMP error in connect",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp port seq 0 port 8000
				       done dial = ECONNREFUSED
				10s`},
		{name: "a host that is unreachable ends a dial",
			source: "RFC 5461 4.1, net/ipv6/icmp.c tab_unreach; packetimpact: ICMP in connect",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp host seq 0 port 8000
				       done dial = EHOSTUNREACH`},
		{name: "a router that ends the way ends a dial",
			source: "net/ipv4/tcp_ipv4.c tcp_v4_err, net/ipv6/icmp.c icmpv6_err_convert",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp hops seq 0 port 8000
				       done dial = EHOSTUNREACH`},
		{name: "a firewall ends a dial", source: "net/ipv4/icmp.c icmp_err_convert", only: 4,
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp admin seq 0 port 8000
				       done dial = EHOSTUNREACH`},
		{name: "a firewall ends a dial (IPv6)", source: "net/ipv6/icmp.c tab_unreach", only: 6,
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp admin seq 0 port 8000
				       done dial = EACCES`},
		{name: "a net that is unreachable ends a dial",
			source: "RFC 5461 4.1; packetimpact: network unreachable",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < icmp net seq 0 port 8000
				       done dial = ENETUNREACH`},
		{name: "messages do not end a connection",
			source: "RFC 5461 2, RFC 5927 5.2; packetdrill: soft ICMP errors",
			script: `
				0      open mss 1000
				       write 100
				       > PA 1+100 ack 1
				10ms   < icmp host seq 1
				       < icmp net seq 1
				       < icmp port seq 1
				       < icmp proto seq 1
				       < icmp admin seq 1
				       < icmp hops seq 1
				20ms   < A 1 ack 101
				       < PA 1+100 ack 101
				       read 100
				25ms   > A 101 ack 101`},
		{name: "a timeout is told by the message that came",
			source: "RFC 9293 3.9.2.2; packetdrill: soft ICMP errors",
			config: netstackTCP(new(tcpip.TCPMaxRetriesOption(2))),
			script: `
				0      open mss 1000
				       write 100
				       > PA 1+100 ack 1
				       read 1 ...
				10ms   < icmp net seq 1
				120ms  > PA 1+100 ack 1
				360ms  > PA 1+100 ack 1
				840ms  done read = ENETUNREACH`},
		{name: "a timeout is told by a firewall's message", only: 6,
			source: "net/ipv4/tcp_timer.c tcp_write_err: sk_err_soft",
			config: netstackTCP(new(tcpip.TCPMaxRetriesOption(2))),
			script: `
				0      open mss 1000
				       write 100
				       > PA 1+100 ack 1
				       read 1 ...
				10ms   < icmp admin seq 1
				120ms  > PA 1+100 ack 1
				360ms  > PA 1+100 ack 1
				840ms  done read = EACCES`},
		{name: "a timeout is not told by a message from before the last answer",
			source: "net/ipv4/tcp_input.c tcp_ack: sk_err_soft is 0 from then on",
			config: netstackTCP(new(tcpip.TCPMaxRetriesOption(2))),
			script: `
				0      open mss 1000
				       write 100
				       > PA 1+100 ack 1
				10ms   < icmp net seq 1
				20ms   < A 1 ack 101
				       write 100
				       > PA 101+100 ack 1
				       read 1 ...
				140ms  > PA 101+100 ack 1
				380ms  > PA 101+100 ack 1
				860ms  done read = ETIMEDOUT`},
	}
}

// listeners are full backlogs and SYN cookies.
func listeners() []row {
	one := func(c *stack.Config) { c.TCP.Backlog = 1 }
	return []row{
		{name: "with a SYN cookie a connection does not begin three bytes late",
			source: "RFC 4987 3.6: netstack's cookie holds a number from 0 to 3 beside the hash",
			linux:  "begins there, and the three bytes are lost: syncookies.c compares so, too",
			config: netstackTCP(new(tcpip.TCPAlwaysUseSynCookies(true))),
			script: `
				0      listen
				       < S 0 mss 1460
				       > SA 0 ack 1 mss own
				10ms   < A 4+10 ack 1
				       > A 1 ack 1
				       < A 1+3 ack 1
				       > A 1 ack 14`},
		{name: "with a SYN cookie a connection does not begin four bytes late",
			source: "RFC 4987 3.6",
			linux:  "resets: the cookie is of another sequence number",
			config: netstackTCP(new(tcpip.TCPAlwaysUseSynCookies(true))),
			script: `
				0      listen
				       < S 0 mss 1460
				       > SA 0 ack 1 mss own
				10ms   < A 5+10 ack 1
				       > A 1 ack 1
				       < A 1+4 ack 1
				       > A 1 ack 15`},
		{name: "with a SYN cookie a late ACK opens a closed connection again",
			source: "RFC 4987 3.6: the server keeps no state",
			config: netstackTCP(new(tcpip.TCPAlwaysUseSynCookies(true))),
			script: `
				0      listen
				       < S 0 mss 1460
				       > SA 0 ack 1 mss own
				10ms   < FA 1+10 ack 1
				       accept
				       read 10
				12ms   close
				       > FA 1 ack 12
				30ms   < A 12 ack 2
				40ms   < A 1 ack 1
				       accept`},
		{name: "SYNs are dropped while the queue of accepted connections is full",
			source: "listen(2); packetimpact: listen backlog",
			config: one,
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				10ms   < A 1 ack 1
				       < S 0 mss 1000 port 4001
				       > SA 0 ack 1 mss own port 4001
				20ms   < A 1 ack 1 port 4001
				       < S 0 mss 1000 port 4002
				30ms   accept
				       < S 0 mss 1000 port 4002
				       > SA 0 ack 1 mss own port 4002`},
		{name: "the last ACK is dropped while that queue is full, and the SYN-ACK sent again",
			source: "listen(2); packetimpact: listen backlog",
			config: one,
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				       < S 0 mss 1000 port 4001
				       > SA 0 ack 1 mss own port 4001
				10ms   < A 1 ack 1
				       < A 1 ack 1 port 4001
				20ms   accept
				30ms   accept
				       write 10
				       > PA 1+10 ack 1 port 4001
				40ms   < A 1 ack 11 port 4001`},
		{name: "SYN cookies while too many handshakes are under way",
			source: "RFC 4987 3.6; packetimpact: SYN cookies",
			config: one,
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				       < S 0 mss 1400 sackok ts ws 7 port 4001
				       > SA 0 ack 1 mss own ts port 4001
				10ms   < A 1 ack 1 port 4001
				       accept
				       write 2000
				       > A 1+1288 ack 1 port 4001
				       > PA 1289+712 ack 1 port 4001
				20ms   < A 1 ack 2001 port 4001
				       < A 1 ack 1`},
		{name: "a copy of a SYN gets no options that its SYN cookie had not",
			source: "RFC 7323 2.2, RFC 2018 2: the peer goes by the first answer",
			config: one,
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				       < S 0 mss 1400 sackok ts ws 7 port 4001
				       > SA 0 ack 1 mss own ts port 4001
				10ms   < A 1 ack 1
				       accept
				20ms   < S 0 mss 1400 sackok ts ws 7 port 4001
				       > SA 0 ack 1 mss own ts port 4001`},
		{name: "SYN cookies always, and a wrong one is refused",
			source: "RFC 4987 3.6; packetimpact: SYN cookies",
			config: netstackTCP(new(tcpip.TCPAlwaysUseSynCookies(true))),
			script: `
				0      listen
				       < S 0 mss 1460 sackok ws 7
				       > SA 0 ack 1 mss own
				10ms   < A 1 ack 2
				       > R 2
				20ms   < A 1 ack 1
				       accept
				       < PA 1+100 ack 1
				       > A 1 ack 101
				       read 100`},
	}
}
