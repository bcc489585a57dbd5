package tcp

// closing is CLOSING and FIN-WAIT-1, and what would leave a connection there for good.
func closing() []row {
	return []row{
		{name: "the acknowledgement of our FIN overtakes the peer's FIN",
			source: "RFC 9293 3.10.7.4 eighth: FIN-WAIT-1 becomes TIME-WAIT if our FIN has been " +
				"acknowledged",
			linux: "in FIN-WAIT-2 by then, net/ipv4/tcp_input.c tcp_rcv_state_process: no probe",
			script: `
				0      open mss 1000
				       closewrite
				       > FA 1 ack 1
				10ms   < A 2 ack 2
				20ms   < FA 1 ack 1
				       read 1 = EOF
				25ms   > A 2 ack 2
				30ms   close
				2030ms > A 1 ack 2
				2040ms < A 2 ack 2
				30s    < FA 1 ack 2
				       > A 2 ack 2
				60s    < FA 1 ack 2
				       > A 2 ack 2
				120s   < FA 1 ack 2
				       > R 2`},
		{name: "the acknowledgement of our FIN comes behind a gap, and the peer goes away",
			source: "RFC 9293 3.10.7.4 fifth: FIN-WAIT-1 becomes FIN-WAIT-2 if our FIN has been " +
				"acknowledged",
			linux: "in FIN-WAIT-2 by then, net/ipv4/tcp_input.c tcp_rcv_state_process: no probe",
			script: `
				0      open mss 1000
				       closewrite
				       > FA 1 ack 1
				10ms   < A 1001+1000 ack 2
				       > A 2 ack 1
				20ms   close
				2020ms > A 1 ack 1
				2030ms < R 1
				30s    < FA 1 ack 2
				       > R 2`},
		{name: "we close just before our keepalive timer expires, and the peer is gone",
			source: "RFC 9293 3.8.4",
			script: `
				0       open mss 1000
				        closewrite
				        > FA 1 ack 1
				10ms    < A 1001+1000 ack 2
				        > A 2 ack 1
				14500ms close
				15010ms > A 1 ack 1
				15020ms < R 1
				30s     < FA 1 ack 2
				        > R 2`},
		{name: "data that waits for a window in CLOSING is delivered",
			source: "RFC 9293 3.8.6, 3.6",
			script: `
				0      open mss 1000 win 1000
				       write 1500
				       > A 1+1000 ack 1
				       closewrite
				10ms   < FA 1 ack 1001 win 0
				       read 1 = EOF
				15ms   > A 1001 ack 2
				       close
				130ms  > A 1000+1 ack 2 junk
				140ms  < A 2 ack 1001 win 0
				370ms  > A 1000+1 ack 2 junk
				380ms  < A 2 ack 1001 win 0
				850ms  > A 1000+1 ack 2 junk
				860ms  < A 2 ack 1001 win 0
				1500ms < A 2 ack 1001 win 1000
				       > PA 1001+500 ack 2
				1510ms < A 2 ack 1501
				       > FA 1501 ack 2
				1520ms < A 2 ack 1502`},
		{name: "a peer that is gone ends CLOSING by a reset",
			source: "RFC 9293 3.10.7.4 second",
			script: `
				0      open mss 1000
				       closewrite
				       > FA 1 ack 1
				10ms   < A 2 ack 2
				20ms   < FA 1 ack 1
				       read 1 = EOF
				25ms   > A 2 ack 2
				       close
				2025ms > A 1 ack 2
				2030ms < R 2
				30s    < FA 1 ack 2
				       > R 2`},
		{name: "once we have closed, an acknowledgement that overtakes the peer's FIN resets",
			source: "RFC 9293 3.10.7.4 fifth (it should be taken)",
			linux:  "takes it, net/ipv4/tcp_input.c tcp_rcv_state_process",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < A 2 ack 2
				       > RA 2 ack 1`},
	}
}
