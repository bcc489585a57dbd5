package tcp

import (
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// handshakes are how connections begin.
func handshakes() []row {
	return []row{
		{name: "a connection is accepted",
			source: "RFC 9293 3.5; packetdrill: server handshake",
			script: `
				0      listen
				       < S 0 win 65535 mss 1000 sackok ts 5000 0 ws 7
				       > SA 0 ack 1 mss own sackok ts 0 5000 ws 8
				+10ms  < A 1 ack 1 win 512
				       accept
				       count established 1`},
		{name: "no option is offered that the peer has not",
			source: "RFC 7323 1.3, RFC 2018 2",
			script: `
				0      listen
				       < S 0
				       > SA 0 ack 1 mss own
				+10ms  < A 1 ack 1
				       accept`},
		{name: "each option is agreed on by itself",
			source: "RFC 7323 1.3, RFC 2018 2",
			script: `
				0  listen
				   < S 0 mss 1000 ws 7
				   > SA 0 ack 1 mss own ws 8
				   < S 0 mss 1000 sackok port 4001
				   > SA 0 ack 1 mss own sackok port 4001
				   < S 0 mss 1000 ts port 4002
				   > SA 0 ack 1 mss own ts port 4002`},
		{name: "a SYN-ACK is sent again after 1, 3, 7, 15, 31 and 63 s, and given up after 127",
			source: "RFC 6298 5, RFC 9293 3.8.3; packetimpact: SYN-RCVD retransmission",
			linux:  "five times, net.ipv4.tcp_synack_retries",
			script: `
				0     listen
				      < S 0 mss 1000
				      > SA 0 ack 1 mss own
				1s    > SA 0 ack 1 mss own
				3s    > SA 0 ack 1 mss own
				7s    > SA 0 ack 1 mss own
				15s   > SA 0 ack 1 mss own
				31s   > SA 0 ack 1 mss own
				63s   > SA 0 ack 1 mss own
				128s  < A 1 ack 1
				      > R 1`},
		{name: "a connection is opened",
			source: "RFC 9293 3.5; packetdrill: client handshake",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts 0 0 ws 8
				+10ms  < SA 0 ack 1 win 65535 mss 1000 sackok ts 5000 0 ws 7
				       > A 1 ack 1 ts 10 5000
				       done dial`},
		{name: "a SYN is sent again after 1, 3, 7, 15, 31 and 63 s, and given up after 127",
			source: "RFC 6298 5, RFC 9293 3.8.3; packetdrill: SYN timeout",
			linux:  "since 6.5 the first four intervals are 1 s, net.ipv4.tcp_syn_linear_timeouts",
			script: `
				0     dial ...
				      > S 0 mss own sackok ts ws 8
				1s    > S 0 mss own sackok ts ws 8
				3s    > S 0 mss own sackok ts ws 8
				7s    > S 0 mss own sackok ts ws 8
				15s   > S 0 mss own sackok ts ws 8
				31s   > S 0 mss own sackok ts ws 8
				63s   > S 0 mss own sackok ts ws 8
				127s  done dial = ETIMEDOUT`},
		{name: "fewer SYNs, as configured",
			source: "TCP_SYNCNT of tcp(7); here for the whole stack, by netstack's option",
			config: func(c *stack.Config) {
				c.TCP.Netstack = append(c.TCP.Netstack, new(tcpip.TCPSynRetriesOption(2)))
			},
			script: `
				0   dial ...
				    > S 0 mss own sackok ts ws 8
				1s  > S 0 mss own sackok ts ws 8
				3s  > S 0 mss own sackok ts ws 8
				7s  done dial = ETIMEDOUT
				30s`},
		{name: "both open at once",
			source: "RFC 9293 3.5 figure 7; packetdrill: simultaneous open",
			linux:  "offers no window scale then; ours is 0, which changes nothing",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				+10ms  < S 0 mss 1000
				       > SA 0 ack 1 mss own ws 0
				+10ms  < SA 0 ack 1 mss 1000
				       > A 1 ack 1
				+10ms  < A 1 ack 1
				       done dial
				       write 100
				       > PA 1+100 ack 1
				+10ms  < A 1 ack 101`},
		{name: "data in a SYN is not taken, and is taken when it comes again",
			source: "RFC 9293 3.4; packetimpact: SYN with data",
			script: `
				0      listen
				       < S 0+100 mss 1000
				       > SA 0 ack 1 mss own
				+10ms  < PA 1+100 ack 1
				       accept
				       read 100
				+5ms   > A 1 ack 101`},
		{name: "data with the last ACK of the handshake is taken",
			source: "RFC 9293 3.10.7.4",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				+10ms  < PA 1+100 ack 1
				       accept
				       read 100
				+5ms   > A 1 ack 101`},
		{name: "a FIN with the last ACK of the handshake is taken",
			source: "RFC 9293 3.10.7.4",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				+10ms  < FA 1 ack 1
				       accept
				       read 1 = EOF
				+5ms   > A 1 ack 2`},
		{name: "the window is scaled in the answer to a SYN that comes again",
			source: "RFC 7323 2.3", only: 4,
			script: `
				0      listen
				       < S 0 mss 1000 ws 7
				       > SA 0 ack 1 mss own ws 8 win 29184
				10ms   < S 0 mss 1000 ws 7
				       > A 1 ack 1 win 114
				20ms   < A 1 ack 1
				       accept`},
		{name: "a SYN that comes again is acknowledged; the SYN-ACK comes by its timer only",
			source: "RFC 9293 3.10.7.4 first; packetimpact: SYN in SYN-RCVD",
			linux:  "sends the SYN-ACK again, net/ipv4/tcp_minisocks.c tcp_check_req",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				500ms  < S 0 mss 1000
				       > A 1 ack 1
				700ms  < S 0 mss 1000       # answered once in 500 ms
				1s     > SA 0 ack 1 mss own
				1010ms < A 1 ack 1
				       accept`},
		{name: "another SYN within the window ends a handshake",
			source: "RFC 9293 3.10.7.4 fourth",
			linux:  "answers with an ACK, net/ipv4/tcp_minisocks.c tcp_check_req",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				10ms   < S 500 mss 1000
				       > RA 0 ack 501 zero
				20ms   < S 500 mss 1000 port 4001
				       > SA 0 ack 501 mss own port 4001`},
		{name: "a reset within the window ends a handshake",
			source: "RFC 9293 3.10.7.4 second; packetimpact: reset in SYN-RCVD",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				10ms   < R 1
				5s     < A 1 ack 1
				       > R 1`},
		{name: "a reset outside the window does not end a handshake",
			source: "RFC 9293 3.10.7.4 first; packetimpact: reset in SYN-RCVD",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				10ms   < R 70000
				20ms   < R 0
				30ms   < A 1 ack 1
				       accept`},
		{name: "a wrong acknowledgement in SYN-RCVD is answered by a reset, and changes nothing",
			source: "RFC 9293 3.10.7.4 fifth; packetimpact: acceptable ACK in SYN-RCVD",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				10ms   < A 1 ack 1000
				       > R 1000
				20ms   < A 1 ack 0
				       > R 0
				30ms   < A 1 ack 1
				       accept`},
		{name: "a refused connection",
			source: "RFC 9293 3.10.7.3 second; packetimpact: reset in SYN-SENT",
			script: `
				0     dial ...
				      > S 0 mss own sackok ts ws 8
				10ms  < RA 0 ack 1
				      done dial = ECONNREFUSED
				10s`},
		{name: "a reset without the right acknowledgement does not refuse a connection",
			source: "RFC 9293 3.10.7.3 second; packetimpact: reset in SYN-SENT",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < RA 0 ack 2
				       < RA 0 ack 0
				       < R 0
				20ms   < SA 0 ack 1 mss 1000
				       > A 1 ack 1
				       done dial`},
		{name: "a wrong acknowledgement in SYN-SENT is reset, and the SYN sent again at once",
			source: "RFC 9293 3.10.7.3 first; packetimpact: challenge ACK in SYN-SENT",
			script: `
				0        dial ...
				         > S 0 mss own sackok ts ws 8
				10ms     < A 5000 ack 9000
				         > R 9000
				10002us  > S 0 mss own sackok ts ws 8
				165710us > S 0 mss own sackok ts ws 8
				296782us > S 0 mss own sackok ts ws 8
				300ms    < SA 0 ack 1 mss 1000
				         > A 1 ack 1
				         done dial`},
		{name: "segments without SYN are nothing in SYN-SENT",
			source: "RFC 9293 3.10.7.3 fifth",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < A 1 ack 1
				       < FA 1 ack 1
				       < PA 1+10 ack 1
				       < - 1
				20ms   < SA 0 ack 1 mss 1000
				       > A 1 ack 1
				       done dial`},
		{name: "the last ACK of a handshake is sent again when the SYN-ACK comes again",
			source: "RFC 9293 3.10.7.4 first, RFC 5961 4",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts ws 8
				10ms   < SA 0 ack 1 mss 1000
				       > A 1 ack 1
				       done dial
				1s     < SA 0 ack 1 mss 1000
				       > A 1 ack 1`},
		{name: "a closed port refuses with a reset that acknowledges",
			source: "RFC 9293 3.10.7.1; packetimpact: unknown port",
			script: `
				0  < S 0 mss 1000
				   > RA 0 ack 1
				   < S 0+100 mss 1000 port 4001
				   > RA 0 ack 101 port 4001
				   < A 1 ack 1000
				   > R 1000
				   < SA 0 ack 1000
				   > R 1000
				   < PA 1+100 ack 7
				   > R 7
				   < F 1
				   > RA 0 ack 2
				   < - 1+10
				   > RA 0 ack 11
				   < R 1
				   < RA 1 ack 1`},
		{name: "a listener takes only SYNs",
			source: "RFC 9293 3.10.7.2; packetimpact: segments to LISTEN",
			script: `
				0  listen
				   < A 1 ack 1000
				   > R 1000
				   < SA 0 ack 1000
				   > R 1000
				   < R 1
				   < RA 1 ack 1
				   < - 1
				   < F 1`},
		{name: "SYN and FIN together",
			source: "RFC 9293 3.10.7.2 fourth",
			linux:  "drops it, net/ipv4/tcp_input.c tcp_rcv_state_process",
			script: `
				0      listen
				       < SF 0 mss 1000
				       > SA 0 ack 1 mss own`},
	}
}
