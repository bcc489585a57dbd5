package tcp

// invalid are segments that a connection must not take, and resets.
func invalid() []row {
	return []row{
		{name: "a reset of the expected sequence number ends a connection",
			source: "RFC 5961 3.2; packetdrill: reset",
			script: `
				0     open mss 1000
				      read 1 ...
				10ms  < R 1
				      done read = ECONNRESET
				      write 1 = EPIPE
				20ms  < A 1 ack 1
				      > R 1`},
		{name: "what has arrived before a reset can be read",
			source: "RFC 9293 3.10.7.4 second (it may be discarded)",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				1ms    < R 101
				       read 100
				       read 1 = ECONNRESET
				5ms    > A 1 ack 101 # that was held`},
		{name: "another reset in the window is challenged, once in 500 ms",
			source: "RFC 5961 3.2, 7; packetdrill: challenge ACK",
			script: `
				0      open mss 1000
				10ms   < R 2
				       > A 1 ack 1
				20ms   < R 2000
				510ms  < R 2000
				       > A 1 ack 1
				600ms  < R 1
				       read 1 = ECONNRESET`},
		{name: "a reset outside the window is nothing",
			source: "RFC 5961 3.2; packetimpact: outside the window",
			script: `
				0      open mss 1000
				10ms   < R 0
				20ms   < R 1000000
				30ms   < PA 1+100 ack 1
				       read 100
				35ms   > A 1 ack 101`},
		{name: "a SYN in a connection is challenged",
			source: "RFC 5961 4.2; packetimpact: SYN in a connection",
			script: `
				0      open mss 1000
				10ms   < S 1 mss 1000
				       > A 1 ack 1
				600ms  < S 100000 mss 1000
				       > A 1 ack 1
				1200ms < SA 0 ack 1 mss 1000
				       > A 1 ack 1
				1300ms < PA 1+100 ack 1
				       > A 1 ack 101
				       read 100`},
		{name: "a reset ends a connection that the peer has closed",
			source: "RFC 9293 3.10.7.4 second",
			script: `
				0      open mss 1000
				       < FA 1 ack 1
				5ms    > A 1 ack 2
				10ms   < R 2
				       read 1 = EOF
				       write 1 = EPIPE`},
		{name: "data before the window is acknowledged again, not taken",
			source: "RFC 9293 3.10.7.4 first, RFC 2883 4.1; packetimpact: outside the window",
			script: `
				0      open mss 1036 sackok
				       < PA 1+100 ack 1
				       read 100
				5ms    > A 1 ack 101
				10ms   < PA 1+100 ack 1
				       > A 1 ack 101 sack 1-101
				       read 1 ...
				20ms   < PA 51+60 ack 1    # 10 bytes of it are new
				       > A 1 ack 111 sack 51-101
				       done read
				       read 9`},
		{name: "data behind the window is acknowledged, not taken",
			source: "RFC 9293 3.10.7.4 first; packetimpact: outside the window",
			script: `
				0      open mss 1000
				       < PA 100000+100 ack 1
				       > A 1 ack 1
				       < PA 100000+100 ack 1
				       > A 1 ack 1`},
		{name: "an empty segment outside the window is acknowledged, once in 500 ms",
			source: "RFC 9293 3.10.7.4 first; packetimpact: outside the window",
			script: `
				0      open mss 1000
				       < A 100000 ack 1
				       > A 1 ack 1
				       < A 100000 ack 1
				500ms  < A 0 ack 1
				       > A 1 ack 1`},
		{name: "an acknowledgement of what was never sent is nothing in ESTABLISHED",
			source: "RFC 9293 3.10.7.4 fifth (to be answered by an ACK); packetimpact: unsent data",
			script: `
				0      open mss 1000
				       write 100
				       > PA 1+100 ack 1
				10ms   < A 1 ack 1000
				120ms  > PA 1+100 ack 1
				130ms  < A 1 ack 101`},
		{name: "an acknowledgement before anything is sent is a long round trip",
			source: "RFC 9293 3.10.7.4 fifth, RFC 6298 2 (it has to be ignored)",
			linux:  "takes no sample: the segment would be sent again after 200 ms",
			script: `
				0      open mss 1000
				       < A 1 ack 1000 # the sample is the age of the stack, of 1 s here at least
				10ms   write 100
				       > PA 1+100 ack 1
				1s     < A 1 ack 101`},
		{name: "an acknowledgement of what was never sent is answered when we have closed",
			source: "RFC 9293 3.10.7.4 fifth; packetimpact: unsent data, closing",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < A 1 ack 1000
				       > A 2 ack 1
				20ms   < A 1 ack 2`},
		{name: "data with an acknowledgement of what was never sent is taken",
			source: "RFC 5961 5.2 (it is not to be)",
			linux:  "drops it, net/ipv4/tcp_input.c tcp_ack",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 100000
				       read 100
				5ms    > A 1 ack 101`},
		{name: "a segment without ACK is nothing",
			source: "RFC 9293 3.10.7.4 fifth; packetimpact: flags",
			script: `
				0      open mss 1000
				       < P 1+100
				       < - 1+100
				       < F 1
				       < U 1+10 urg 5
				10ms   < PA 1+100 ack 1
				       read 100
				15ms   > A 1 ack 101`},
		{name: "a wrong checksum is nothing",
			source: "RFC 9293 3.1",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1 badsum
				       < R 1 badsum
				       count badsum 2
				10ms   < PA 1+100 ack 1
				       read 100
				15ms   > A 1 ack 101`},
		{name: "a wrong data offset is nothing",
			source: "RFC 9293 3.1; packetimpact: data offset",
			script: `
				0      open mss 1000
				       < PA 1+10 ack 1 offset 4
				       < PA 1+10 ack 1 offset 16   # 0 on the wire
				       < PA 1+10 ack 1 offset 8
				       < PA 1+10 ack 1 offset 15
				       < R 1 offset 4
				10ms   < PA 1+100 ack 1
				       read 100
				15ms   > A 1 ack 101`},
		{name: "a truncated header is nothing",
			source: "RFC 9293 3.1",
			script: `
				0      open mss 1000
				       < A 1 ack 1 cut 1
				       < R 1 cut 2
				       < A 1 ack 1 cut 12
				       < A 1 ack 1 cut 20
				10ms   < PA 1+100 ack 1
				       read 100
				15ms   > A 1 ack 101`},
		{name: "urgent data is data",
			source: "RFC 6093 6; packetdrill: urgent",
			linux:  "takes it out of the stream, unless SO_OOBINLINE is set",
			script: `
				0      open mss 1000
				       < PAU 1+100 ack 1 urg 50
				       read 100
				5ms    > A 1 ack 101`},
		{name: "flags of ECN that were not agreed on change nothing",
			source: "RFC 3168 6.1",
			script: `
				0      open mss 1000
				       < PAE 1+100 ack 1
				       read 100
				5ms    > A 1 ack 101
				       < PAC 101+100 ack 1 ect 3
				       read 100
				10ms   > A 1 ack 201`},
		{name: "no ECN is agreed on",
			source: "RFC 3168 6.1.1",
			linux:  "agrees, net.ipv4.tcp_ecn 2",
			script: `
				0      listen
				       < SEC 0 mss 1000
				       > SA 0 ack 1 mss own`},
		{name: "the echoed timestamp is that of the segment that moved the window",
			source: "RFC 7323 4.3; packetdrill: ts_recent",
			script: `
				0      open mss 1040 sackok ts
				       < PA 1+100 ack 1 ts 2000000 0
				5ms    > A 1 ack 101 ts 10 2000000
				       < PA 201+100 ack 1 ts 2000010 0   # out of order
				       > A 1 ack 101 ts 15 2000000 sack 201-301
				6ms    < PA 101+100 ack 1 ts 2000020 0
				       > A 1 ack 301 ts 16 2000020`},
		{name: "an old timestamp does not keep data out",
			source: "RFC 7323 5.3 (it has to: PAWS); packetimpact: PAWS",
			linux:  "drops and acknowledges it, net/ipv4/tcp_input.c tcp_validate_incoming",
			script: `
				0      open mss 1040 sackok ts
				       < PA 1+100 ack 1 ts 2000000 0
				       read 100
				5ms    > A 1 ack 101 ts 10 2000000
				10ms   < PA 101+100 ack 1 ts 1000 0
				       read 100
				15ms   > A 1 ack 201 ts 20 2000000`},
		{name: "a segment without a timestamp is taken where they were agreed on",
			source: "RFC 7323 3.2 (it should be dropped)",
			script: `
				0      open mss 1040 sackok ts
				       < PA 1+100 ack 1 nots
				       read 100
				5ms    > A 1 ack 101`},
		{name: "the last ACK of a handshake without a timestamp is taken",
			source: "google/gvisor#11536; Linux: net/ipv4/tcp_minisocks.c tcp_check_req (RFC " +
				"7323 3.2: it should be dropped)",
			script: `
				0      listen
				       < S 0 mss 1000 ts
				       > SA 0 ack 1 mss own ts
				10ms   < A 1 ack 1 nots
				       accept
				20ms   < PA 1+100 ack 1 nots
				       read 100
				25ms   > A 1 ack 101
				       write 50
				       > PA 1+50 ack 101
				30ms   < A 101 ack 51 nots`},
		{name: "data without a timestamp ends a handshake",
			source: "google/gvisor#11536; Linux: net/ipv4/tcp_minisocks.c tcp_check_req (RFC " +
				"7323 3.2: it should be dropped)",
			script: `
				0      listen
				       < S 0 mss 1000 ts
				       > SA 0 ack 1 mss own ts
				10ms   < PA 1+100 ack 1 nots
				       accept
				       read 100
				15ms   > A 1 ack 101
				20ms   < PAF 101+10 ack 1 nots
				       read 10
				25ms   > A 1 ack 112`},
	}
}
