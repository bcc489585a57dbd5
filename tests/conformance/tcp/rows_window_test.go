package tcp

import (
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// small gives connections a receive buffer of 8 KiB: a window of 4 KiB, as netstack counts half of
// the buffer for its own records.
func small(c *stack.Config) {
	c.TCP.ReceiveBuffer = stack.BufferRange{Min: 4096, Default: 8192, Max: 8192}
}

// windows are flow control, in both directions.
func windows() []row {
	return []row{
		{name: "a zero window is probed with growing intervals",
			source: "RFC 9293 3.8.6.1; packetimpact: zero window probe",
			linux: "with an empty segment, net/ipv4/tcp_output.c tcp_xmit_probe_skb; the " +
				"congestion window stays",
			script: `
				0      open mss 1000 win 1000
				       write 3000
				       > A 1+1000 ack 1
				10ms   < A 1 ack 1001 win 0
				130ms  > A 1000+1 ack 1 junk
				140ms  < A 1 ack 1001 win 0
				370ms  > A 1000+1 ack 1 junk
				380ms  < A 1 ack 1001 win 0
				850ms  > A 1000+1 ack 1 junk
				860ms  < A 1 ack 1001 win 2000
				       > A 1001+1000 ack 1
				870ms  < A 1 ack 2001 win 2000
				       > PA 2001+1000 ack 1
				880ms  < A 1 ack 3001`},
		{name: "a window that opens by itself ends the probes",
			source: "RFC 9293 3.8.6.1; packetimpact: zero window",
			script: `
				0      open mss 1000 win 1000
				       write 1500
				       > A 1+1000 ack 1
				10ms   < A 1 ack 1001 win 0
				50ms   < A 1 ack 1001 win 1000
				       > PA 1001+500 ack 1
				60ms   < A 1 ack 1501
				10s`},
		{name: "probes that nobody answers end the connection",
			source: "RFC 9293 3.8.6.1; packetimpact: zero window probe, user timeout",
			config: netstackTCP(new(tcpip.TCPMaxRetriesOption(3))),
			script: `
				0      open mss 1000 win 1000
				       write 3000
				       > A 1+1000 ack 1
				10ms   < A 1 ack 1001 win 0
				130ms  > A 1000+1 ack 1 junk
				370ms  > A 1000+1 ack 1 junk
				850ms  > A 1000+1 ack 1 junk
				1810ms read 1 = ETIMEDOUT`},
		{name: "no more than the window is sent",
			source: "RFC 9293 3.8.6; packetimpact: send window",
			linux:  "leaves out the 500 bytes, net/ipv4/tcp_output.c tcp_mss_split_point",
			script: `
				0      open mss 1000 win 2500
				       write 5000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+500 ack 1
				10ms   < A 1 ack 2501 win 2500
				       > A 2501+1000 ack 1
				       > A 3501+1000 ack 1
				       > PA 4501+500 ack 1
				20ms   < A 1 ack 5001`},
		{name: "a small window is used when nothing is under way",
			source: "RFC 9293 3.8.6.2.1; packetimpact: split segment",
			script: `
				0      open mss 1000 win 300
				       write 1000
				       > PA 1+300 ack 1
				10ms   < A 1 ack 301 win 300
				       > PA 301+300 ack 1
				20ms   < A 1 ack 601 win 1000
				       > PA 601+400 ack 1
				30ms   < A 1 ack 1001`},
		{name: "a window that shrinks",
			source: "RFC 9293 3.8.6; packetimpact: window shrink",
			script: `
				0      open mss 1000 win 3000
				       write 5000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				10ms   < A 1 ack 1001 win 500
				20ms   < A 1 ack 3001 win 2000
				       > A 3001+1000 ack 1
				       > PA 4001+1000 ack 1
				30ms   < A 1 ack 5001`},
		{name: "an acknowledgement that was overtaken has a small window",
			source: "RFC 9293 3.10.7.4 fifth: SND.WL1, SND.WL2",
			script: `
				0      open mss 1000
				       write 3000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > PA 2001+1000 ack 1
				10ms   < A 1 ack 1001 win 8000
				       < A 1 ack 1 win 500
				130ms  > A 1001+1000 ack 1
				140ms  < A 1 ack 3001`},
		{name: "an overtaken acknowledgement with a small window does not open a larger one",
			source: "RFC 9293 3.10.7.4 fifth: SND.WL1, SND.WL2",
			script: `
				0      open mss 1000
				       write 3000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > PA 2001+1000 ack 1
				10ms   < A 1 ack 3001 win 1000
				       write 5000
				       > A 3001+1000 ack 1
				11ms   < A 1 ack 1 win 500
				20ms   < A 1 ack 4001 win 8000
				       > A 4001+1000 ack 1
				       > A 5001+1000 ack 1
				       > A 6001+1000 ack 1
				       > PA 7001+1000 ack 1`},
		{name: "what was sent is sent again beyond a window that has shrunk, which is scaled",
			source: "RFC 9293 3.8.6",
			script: `
				0      open mss 1000 ws 7 win 3000
				       write 3000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > PA 2001+1000 ack 1
				10ms   < A 1 ack 1001 win 3
				130ms  > A 1001+1000 ack 1
				140ms  < A 1 ack 3001`},
		{name: "data behind a window that has closed becomes a probe",
			source: "RFC 9293 3.8.6, 3.8.6.1",
			linux:  "sends it again, net/ipv4/tcp_timer.c tcp_retransmit_timer",
			script: `
				0      open mss 1000 win 2000
				       write 2000
				       > A 1+1000 ack 1
				       > PA 1001+1000 ack 1
				10ms   < A 1 ack 1001 win 0
				370ms  > A 1000+1 ack 1 junk
				380ms  < A 1 ack 1001 win 2000
				       > PA 1001+1000 ack 1
				390ms  < A 1 ack 2001`},
		{name: "windows are scaled after the handshake, not in it",
			source: "RFC 7323 2.2; packetimpact: handshake window",
			script: `
				0      listen
				       < S 0 win 65535 mss 1000 ws 7
				       > SA 0 ack 1 mss own ws 8
				10ms   < A 1 ack 1 win 8
				       accept
				       write 2000
				       > A 1+1000 ack 1 win 2048
				       > A 1001+24 ack 1 win 2048
				20ms   < A 1 ack 1025 win 8
				       > PA 1025+976 ack 1 win 2048
				30ms   < A 1 ack 2001 win 8`},
		{name: "a scale above 14 counts as 14",
			source: "RFC 7323 2.3; packetdrill: window scale",
			script: `
				0      listen
				       < S 0 win 65535 mss 1000 ws 15
				       > SA 0 ack 1 mss own ws 8
				10ms   < A 1 ack 1 win 1
				       accept
				       write 2000
				       > A 1+1000 ack 1
				       > PA 1001+1000 ack 1
				20ms   < A 1 ack 2001 win 1`},
		{name: "our window closes when nobody reads, and opens with one update",
			source: "RFC 9293 3.8.6.2.2; packetimpact: zero receive window", only: 4,
			config: small,
			script: `
				0      open mss 1000
				       < A 1+1000 ack 1
				       < A 1001+1000 ack 1
				       > A 1 ack 2001
				       < A 2001+1000 ack 1
				       < A 3001+1000 ack 1
				       > A 1 ack 4001
				10ms   < PA 4001+96 ack 1
				       > A 1 ack 4097 win 0
				20ms   < A 4097+1 ack 1
				       > A 1 ack 4097 win 0
				       read 100
				       read 100
				       read 3896
				       > A 1 ack 4097 win 2000
				       > A 1 ack 4097 win 2918`},
		{name: "a window opens again after data has ended the handshake",
			source: "RFC 9293 3.8.6.2.2: a quarter of the buffer is free, or a segment", only: 4,
			linux: "half of the buffer is free for data, all of it without the records",
			config: func(c *stack.Config) {
				c.TCP.ReceiveBuffer = stack.BufferRange{Min: 4096, Default: 4096, Max: 4096}
			},
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss 642
				10ms   < A 1+1440 ack 1
				15ms   > A 1 ack 1441 win 608
				20ms   accept
				       read 1440
				       > A 1 ack 1441 win 2048`},
		{name: "what is missing is taken where data has ended the handshake",
			source: "RFC 9293 3.10.7.4: it is in the window", only: 4,
			config: func(c *stack.Config) {
				c.TCP.ReceiveBuffer = stack.BufferRange{Min: 4096, Default: 4096, Max: 4096}
			},
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss 642
				10ms   < A 1+1440 ack 1
				15ms   > A 1 ack 1441 win 608
				20ms   accept
				       read 1440
				       > A 1 ack 1441 win 2048
				       < A 1542+200 ack 1
				       > A 1 ack 1441
				       < A 1742+200 ack 1
				       > A 1 ack 1441
				       < A 1942+200 ack 1
				       > A 1 ack 1441
				       < A 1441+101 ack 1
				       > A 1 ack 2142`},
		{name: "what is missing is taken where data behind a gap has ended the handshake",
			source: "RFC 9293 3.10.7.4: it is in the window", only: 4,
			config: func(c *stack.Config) {
				c.TCP.ReceiveBuffer = stack.BufferRange{Min: 4096, Default: 4096, Max: 4096}
			},
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss 642
				10ms   < A 102+1440 ack 1
				       > A 1 ack 1
				       accept
				20ms   < A 1542+200 ack 1
				       > A 1 ack 1
				       < A 1+101 ack 1
				       > A 1 ack 1742`},
		{name: "an acknowledgement is taken while our window is closed",
			source: "RFC 9293 3.8.6",
			config: small,
			script: `
				0      open mss 1000
				       <+ A 1+1400 ack 1
				       <+ A 1401+1400 ack 1
				       < A 2801+1296 ack 1
				       > A 1 ack 4097 win 0
				       write 100
				       > PA 1+100 ack 4097 win 0
				10ms   < A 4097 ack 101
				1s`},
		{name: "a probe of our closed window is answered",
			source: "RFC 9293 3.8.6.1; packetimpact: zero receive window",
			config: small,
			script: `
				0      open mss 1000
				       <+ A 1+1400 ack 1
				       <+ A 1401+1400 ack 1
				       < A 2801+1296 ack 1
				       > A 1 ack 4097 win 0
				1s     < A 4096 ack 1
				       > A 1 ack 4097 win 0
				3s     < A 4096+1 ack 1
				       > A 1 ack 4097 win 0
				5s     < A 4097+1 ack 1
				       > A 1 ack 4097 win 0`},
		{name: "data beyond our window is cut off or dropped",
			source: "RFC 9293 3.10.7.4 first",
			config: small,
			script: `
				0      open mss 1000
				       < A 4098+100 ack 1
				       > A 1 ack 1
				       < A 1+1000 ack 1
				       > A 1 ack 1001
				       read 1000`},
		{name: "a keep-alive probe of the peer's is answered",
			source: "RFC 9293 3.8.4; packetdrill: keepalive",
			script: `
				0      open mss 1000
				10s    < A 0 ack 1
				       > A 1 ack 1
				14s    < A 0+1 ack 1
				       > A 1 ack 1`},
		{name: "an idle connection is probed, and ends when nobody answers",
			source: "RFC 9293 3.8.4; packetdrill: keepalive",
			linux:  "sends a reset at the end, net/ipv4/tcp_timer.c tcp_keepalive_timer",
			script: `
				0      open mss 1000
				       keepalive 10s 5s 3
				       read 1 ...
				10s    > A 0 ack 1
				15s    > A 0 ack 1
				20s    > A 0 ack 1
				25s    done read = ETIMEDOUT`},
		{name: "an answer begins the idle time anew",
			source: "RFC 9293 3.8.4; packetdrill: keepalive",
			script: `
				0      open mss 1000
				       keepalive 10s 5s 3
				10s    > A 0 ack 1
				12s    < A 1 ack 1
				22s    > A 0 ack 1
				23s    < PA 1+10 ack 1
				       > A 1 ack 11
				       read 10
				33s    > A 0 ack 11`},
		{name: "15 s of idle time by default, and 9 probes",
			source: "package net: KeepAliveConfig",
			script: `
				0      open mss 1000
				       read 1 ...
				15s    > A 0 ack 1
				30s    > A 0 ack 1
				45s    > A 0 ack 1
				60s    > A 0 ack 1
				75s    > A 0 ack 1
				90s    > A 0 ack 1
				105s   > A 0 ack 1
				120s   > A 0 ack 1
				135s   > A 0 ack 1
				150s   done read = ETIMEDOUT`},
		{name: "no probe while data is under way",
			source: "RFC 9293 3.8.4",
			script: `
				0      open mss 1000
				       keepalive 100ms 50ms 3
				       write 10
				       > PA 1+10 ack 1
				120ms  > PA 1+10 ack 1
				130ms  < A 1 ack 11
				230ms  > A 10 ack 1
				240ms  < A 1 ack 11`},
		{name: "deadlines are met to the microsecond",
			source: "package net: SetDeadline",
			script: `
				0      open mss 1000
				       deadline 1234567us
				       read 1 ...
				1234567us done read = deadline`},
	}
}
