package tcp

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// held are the rules by which the link holds ACKs.
func held() []row {
	return []row{
		{name: "an ACK of little waits 5 ms",
			source: "RFC 9293 3.8.6.3",
			linux:  "40 ms, and less at the beginning, net/ipv4/tcp_input.c tcp_quickack",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				5ms    > A 1 ack 101
				       count held 1
				       count timed 1`},
		{name: "an ACK rides on data",
			source: "RFC 9293 3.8.6.3",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				       read 100
				1ms    write 50
				       > PA 1+50 ack 101
				       count saved 1
				11ms   < A 101 ack 51`},
		{name: "two segments of data are acknowledged at once",
			source: "RFC 9293 3.8.6.3, RFC 5681 4.2",
			script: `
				0      open mss 1000
				       < A 1+1000 ack 1
				1ms    < A 1001+1000 ack 1
				       > A 1 ack 2001
				2ms    < A 2001+1000 ack 1
				3ms    < PA 3001+1000 ack 1
				       > A 1 ack 4001`},
		{name: "a later ACK takes an earlier one's place, not its time",
			source: "RFC 9293 3.8.6.3: less than 0.5 s",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				3ms    < PA 101+100 ack 1
				5ms    > A 1 ack 201
				6ms    < PA 201+100 ack 1
				11ms   > A 1 ack 301`},
		{name: "duplicate ACKs are sent at once, and the one that ends them",
			source: "RFC 5681 4.2; packetdrill: out-of-order data",
			script: `
				0      open mss 1000
				       < A 101+100 ack 1
				       > A 1 ack 1
				       < A 201+100 ack 1
				       > A 1 ack 1
				       < A 301+100 ack 1
				       > A 1 ack 1
				1ms    < A 1+100 ack 1
				       > A 1 ack 401
				2ms    < A 401+100 ack 1
				7ms    > A 1 ack 501`},
		{name: "a held ACK is not lost before a duplicate",
			source: "RFC 5681 4.2",
			script: `
				0      open mss 1000
				       < A 1+100 ack 1
				1ms    < A 201+100 ack 1
				       > A 1 ack 101
				       > A 1 ack 101
				2ms    < A 101+100 ack 1
				       > A 1 ack 301`},
		{name: "as long as configured",
			source: "TCPOptions.ACKDelay",
			config: func(c *stack.Config) { c.TCP.ACKDelay = 40 * time.Millisecond },
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				40ms   > A 1 ack 101`},
		{name: "not at all",
			source: "TCPOptions.ACKDelay",
			config: func(c *stack.Config) { c.TCP.ACKDelay = -1 },
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				       > A 1 ack 101`},
		{name: "a reset follows the ACK that was held",
			source: "RFC 9293 3.6.1",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				1ms    reset
				       > RA 1 ack 101`},
		{name: "a held ACK is sent although a reset has come",
			source: "RFC 9293 3.10.7.4 second (the connection is gone by then)",
			linux:  "sends nothing",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				1ms    < R 101
				5ms    > A 1 ack 101`},
	}
}

// merging are the rules by which the link joins received segments.
func merging() []row {
	return []row{
		{name: "segments that came together are one",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1000
				       <+ A 1+1000 ack 1
				       <+ A 1001+1000 ack 1
				       < PA 2001+500 ack 1
				       > A 1 ack 2501
				       count merged 3
				       read 2500`},
		{name: "nothing is joined across a gap",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1036 sackok
				       <+ A 1+1000 ack 1
				       < A 2001+1000 ack 1
				       > A 1 ack 1001 sack 2001-3001
				       count merged 0
				1ms    < A 1001+1000 ack 1
				       > A 1 ack 3001
				       read 3000`},
		{name: "PSH ends what is joined",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1000
				       <+ A 1+1000 ack 1
				       <+ PA 1001+1000 ack 1
				       < A 2001+100 ack 1
				       > A 1 ack 2101
				       count merged 2
				       read 2100`},
		{name: "a FIN is joined, and closes",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1000
				       <+ A 1+1000 ack 1
				       < FA 1001+1000 ack 1
				       > A 1 ack 2002
				       count merged 2
				       read 2000
				       read 1 = EOF`},
		{name: "a changed acknowledgement is not lost",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1000
				       write 2000
				       > A 1+1000 ack 1
				       > PA 1001+1000 ack 1
				10ms   <+ A 1+1000 ack 1001
				       < A 1001+1000 ack 2001
				       > A 2001 ack 2001
				       count merged 0
				       read 2000`},
		{name: "a shorter segment ends what is joined",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1000
				       <+ A 1+1000 ack 1
				       <+ A 1001+500 ack 1
				       < A 1501+1000 ack 1
				       > A 1 ack 2501
				       count merged 2
				       read 2500`},
		{name: "another timestamp is not joined",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1040 sackok ts
				       <+ A 1+1000 ack 1 ts 2000000 0
				       < A 1001+1000 ack 1 ts 2000001 0
				       > A 1 ack 2001 ts 10 2000000
				       count merged 0
				       read 2000`},
		{name: "of ACKs that came together the last one counts",
			source: "RFC 9293 3.10.7.4; net/ipv4/tcp_ipv4.c tcp_add_backlog",
			script: `
				0      open mss 1000 rtt 1ms
				       write 1000
				       > PA 1+1000 ack 1
				1ms    < A 1 ack 1001
				       write 1000
				       > PA 1001+1000 ack 1
				2ms    < A 1 ack 2001
				       write 4000
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				3ms    <+ A 1 ack 3001
				       <+ A 1 ack 4001
				       < A 1 ack 6001
				       count superseded 2`},
		{name: "an ACK of what was never sent does not keep another out",
			source: "RFC 5961 5.2",
			linux:  "it answers with a challenge ACK, net/ipv4/tcp_input.c tcp_ack",
			script: `
				0      open mss 1000 rtt 1ms
				       write 1000
				       > PA 1+1000 ack 1
				1ms    < A 1 ack 1001
				       write 1000
				       > PA 1001+1000 ack 1
				2ms    < A 1 ack 2001
				       write 4000
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				3ms    <+ A 1 ack 4001
				       < A 1 ack 6002
				       count superseded 0
				4ms    < A 1 ack 6001`},
		{name: "duplicate ACKs that came together all count",
			source: "RFC 5681 3.2",
			script: `
				0      open mss 1000 rtt 1ms
				       write 1000
				       > PA 1+1000 ack 1
				1ms    < A 1 ack 1001
				       write 1000
				       > PA 1001+1000 ack 1
				2ms    < A 1 ack 2001
				       write 4000
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				3ms    <+ A 1 ack 3001
				       <+ A 1 ack 3001
				       <+ A 1 ack 3001
				       < A 1 ack 3001
				       > A 3001+1000 ack 1
				       count superseded 0
				4ms    < A 1 ack 6001`},
		{name: "a window update is not left out",
			source: "RFC 9293 3.8.6.2",
			script: `
				0      open mss 1000 rtt 1ms
				       write 1000
				       > PA 1+1000 ack 1
				1ms    < A 1 ack 1001
				       write 1000
				       > PA 1001+1000 ack 1
				2ms    < A 1 ack 2001
				       write 4000
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				3ms    <+ A 1 ack 3001
				       <+ A 1 ack 6001 win 1000
				       < A 1 ack 6001 win 2000
				       count superseded 1`},
		{name: "enough ACKs are left for HyStart in slow start",
			source: "Ha and Rhee, Taming the elephants (2011) 3.3; net/ipv4/tcp_cubic.c",
			script: `
				0      open mss 1000
				       write 2000
				       > A 1+1000 ack 1
				       > PA 1001+1000 ack 1
				10ms   < A 1 ack 1001
				       <+ A 1 ack 1501
				       < A 1 ack 2001
				       count superseded 0`},
		{name: "a wrong checksum in the middle is a gap",
			source: "GRO: net/ipv4/tcp_offload.c",
			script: `
				0      open mss 1036 sackok
				       <+ A 1+1000 ack 1
				       <+ A 1001+1000 ack 1 badsum
				       < A 2001+1000 ack 1
				       > A 1 ack 1001 sack 2001-3001
				       count badsum 1`},
	}
}

// fixes are the workarounds for netstack's faults on lossy networks.
func fixes() []row {
	return []row{
		{name: "a lost SYN-ACK does not make a round trip of 1 s",
			source: "docs/netstack-workarounds.md: syn_rtt_fix.go",
			script: `
				0      listen
				       < S 0 mss 1000 ts 5000 0
				       > SA 0 ack 1 mss own ts 0 5000
				1s     > SA 0 ack 1 mss own ts 0 5000
				1010ms < A 1 ack 1 ts 6010 0
				       accept
				       count synrtt 1
				       write 100
				       > PA 1+100 ack 1 ts 1010 6010
				1130ms > PA 1+100 ack 1 ts 1130 6010
				1140ms < A 1 ack 101`},
		{name: "data that ends a handshake after lost SYN-ACKs makes a timeout of 1 s",
			source: "RFC 6298 2.1, 3; docs/netstack-workarounds.md: syn_rtt_fix.go",
			linux:  "3 s, net/ipv4/tcp_input.c tcp_synack_rtt_meas",
			script: `
				0       listen
				        < S 0 mss 1000 ts 5000 0
				        > SA 0 ack 1 mss own ts 0 5000
				1s      > SA 0 ack 1 mss own ts 0 5000
				3s      > SA 0 ack 1 mss own ts 0 5000
				5100ms  < PA 1+10 ack 1 ts 10100 0
				        accept
				        count synrtt 1
				        read 10
				        write 100
				        > PA 1+100 ack 11 ts 5100 10100
				6102ms  > PA 1+100 ack 11 ts 6102 10100
				6110ms  < A 11 ack 101`},
		{name: "a lost SYN does not make a round trip of 1 s",
			source: "docs/netstack-workarounds.md: syn_rtt_fix.go",
			script: `
				0      dial ...
				       > S 0 mss own sackok ts 0 0 ws 8
				1s     > S 0 mss own sackok ts 0 0 ws 8
				1010ms < SA 0 ack 1 mss 1000 ts 5000 0
				       > A 1 ack 1 ts 1010 5000
				       done dial
				       count synrtt 1
				       write 100
				       > PA 1+100 ack 1
				1130ms > PA 1+100 ack 1
				1140ms < A 1 ack 101`},
		{name: "a SYN-ACK echoes the last SYN",
			source: "RFC 7323 4.3; docs/netstack-workarounds.md: syn_echo_fix.go",
			script: `
				0      listen
				       < S 0 mss 1000 ts 5000 0
				       > SA 0 ack 1 mss own ts 0 5000
				990ms  < S 0 mss 1000 ts 5990 0
				       > A 1 ack 1
				1s     > SA 0 ack 1 mss own ts 0 5990`},
		{name: "a loss within a super-segment is sent again after the reordering window",
			source: "RFC 8985 6.2; docs/netstack-workarounds.md: repair.go",
			script: `
				0      open mss 1036 sackok
				       write 3000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > PA 2001+1000 ack 1
				       count lso 1
				10ms   < A 1 ack 1001 sack 2001-3001
				       count sackremoved 1
				12500us > A 1001+1000 ack 1
				       count resent 1
				22500us < A 1 ack 3001`},
		{name: "three losses within a super-segment are sent again at once",
			source: "RFC 6675 5, RFC 8985 6.2",
			linux:  "the same, a quarter of a round trip earlier",
			script: `
				0      open mss 1040 sackok ts rtt 50ms
				       write 10000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > A 5001+1000 ack 1
				       > A 6001+1000 ack 1
				       > A 7001+1000 ack 1
				       > A 8001+1000 ack 1
				       > PA 9001+1000 ack 1
				50ms   < A 1 ack 1 sack 1001-2001
				       < A 1 ack 1 sack 1001-3001
				       < A 1 ack 1 sack 4001-5001 1001-3001
				       < A 1 ack 1 sack 4001-6001 1001-3001
				       < A 1 ack 1 sack 7001-8001 4001-6001 1001-3001
				       < A 1 ack 1 sack 7001-9001 4001-6001 1001-3001
				       < A 1 ack 1 sack 7001-10001 4001-6001 1001-3001
				62500us > A 1+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 6001+1000 ack 1
				       count resent 3
				112500us < A 1 ack 10001
				       write 1000
				       > PA 10001+1000 ack 1
				162500us < A 1 ack 11001`},
		{name: "the end of a super-segment is sent beside a tail loss probe",
			source: "RFC 8985 7.3",
			linux:  "sends the last segment only, net/ipv4/tcp_output.c tcp_send_loss_probe",
			script: `
				0      open mss 1040 sackok ts rtt 50ms
				       write 5000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > PA 4001+1000 ack 1
				50ms   < A 1 ack 2001
				150ms  > A 2001+1000 ack 1
				       > PA 4001+1000 ack 1
				       count resent 1
				200ms  < A 1 ack 3001 sack 4001-5001
				       > A 3001+1000 ack 1
				       count resent 1
				250ms  < A 1 ack 5001`},
		{name: "a FIN that was sent too often to be sent again by a timeout",
			source: "docs/netstack-workarounds.md: fin_count.go",
			linux:  "counts timeouts only, net/ipv4/tcp_timer.c tcp_write_timeout",
			config: netstackTCP(new(tcpip.TCPMaxRetriesOption(3))),
			script: `
				0      open mss 1036 sackok
				       write 1000
				       > PA 1+1000 ack 1
				       write 1000
				       > PA 1001+1000 ack 1
				       write 1000
				       > PA 2001+1000 ack 1
				       write 1000
				       > PA 3001+1000 ack 1
				       closewrite
				       > FA 4001 ack 1
				10ms   < A 1 ack 1001
				20ms   > PA 1001+1000 ack 1
				       > PA 2001+1000 ack 1
				       > PA 3001+1000 ack 1
				       > FA 4001 ack 1
				30ms   < A 1 ack 2001
				       > PA 2001+1000 ack 1
				       > PA 3001+1000 ack 1
				       > FA 4001 ack 1
				40ms   < A 1 ack 3001
				       > PA 3001+1000 ack 1
				       > FA 4001 ack 1
				50ms   < A 1 ack 4001
				51ms   > FA 4001 ack 1
				61ms   < FA 1 ack 4002
				       read 1 = EOF
				66ms   > A 4002 ack 2`},
		{name: "an ACK is taken behind a window that was rounded to 0",
			source: "docs/netstack-workarounds.md: zero_window.go",
			config: func(c *stack.Config) {
				c.TCP.ReceiveBuffer = stack.BufferRange{Min: 4096, Default: 8192}
			},
			script: `
				0      open mss 1000 ws 7
				       < A 1+1000 ack 1
				       < A 1001+1000 ack 1
				       > A 1 ack 2001
				       < A 2001+1000 ack 1
				       < A 3001+1000 ack 1
				       > A 1 ack 4001
				       write 100
				       > PA 1+100 ack 4001 win 0
				10ms   < A 4050 ack 101
				       count zerowindow 1
				1s`},
		{name: "the link sends nothing while netstack's timeout doubles",
			source: "RFC 6298 5.5; docs/netstack-workarounds.md: resend.go",
			script: `
				0       open mss 1000
				        write 100
				        > PA 1+100 ack 1
				120ms   > PA 1+100 ack 1
				360ms   > PA 1+100 ack 1
				840ms   > PA 1+100 ack 1
				1800ms  > PA 1+100 ack 1
				3720ms  > PA 1+100 ack 1
				7560ms  > PA 1+100 ack 1
				        count resent 0
				7570ms  < A 1 ack 101`},
	}
}
