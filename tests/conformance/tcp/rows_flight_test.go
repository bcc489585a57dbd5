package tcp

// flights are how a flight is sent again of which nothing but the end arrives, the second time.
func flights() []row {
	return []row{
		{name: "a whole flight is lost, and the tail loss probe is answered",
			source: "RFC 6298 5.5, RFC 5681 3.1: slow start; tcpfix/resend.go, go_back.go",
			linux:  "repairs the flight in a fast recovery, RFC 8985",
			script: `
				0      open mss 1040 sackok ts
				       write 1000
				       > PA 1+1000 ack 1
				       write 1000
				       > PA 1001+1000 ack 1
				       write 1000
				       > PA 2001+1000 ack 1
				       write 1000
				       > PA 3001+1000 ack 1
				       write 1000
				       > PA 4001+1000 ack 1
				       write 1000
				       > PA 5001+1000 ack 1
				       write 1000
				       > PA 6001+1000 ack 1
				       write 1000
				       > PA 7001+1000 ack 1
				       write 1000
				       > PA 8001+1000 ack 1
				       write 1000
				       > PA 9001+1000 ack 1
				20ms   > PA 9001+1000 ack 1
				30ms   < A 1 ack 1 sack 9001-10001
				180ms  > PA 1+1000 ack 1
				190ms  < A 1 ack 1001 sack 9001-10001
				       > PA 1001+1000 ack 1
				       > PA 2001+1000 ack 1
				200ms  < A 1 ack 3001 sack 9001-10001
				       > PA 3001+1000 ack 1
				       > PA 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				       > PA 6001+1000 ack 1
				210ms  < A 1 ack 10001`},
		{name: "a whole flight is lost, without timestamps",
			source: "RFC 5681 3.1 (two segments were to follow the first)",
			linux:  "repairs the flight in a fast recovery, RFC 8985",
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
				       write 1000
				       > PA 4001+1000 ack 1
				       write 1000
				       > PA 5001+1000 ack 1
				       write 1000
				       > PA 6001+1000 ack 1
				       write 1000
				       > PA 7001+1000 ack 1
				       write 1000
				       > PA 8001+1000 ack 1
				       write 1000
				       > PA 9001+1000 ack 1
				20ms   > PA 9001+1000 ack 1
				30ms   < A 1 ack 1 sack 9001-10001
				180ms  > PA 1+1000 ack 1
				190ms  < A 1 ack 1001 sack 9001-10001
				       > PA 1001+1000 ack 1
				200ms  < A 1 ack 2001 sack 9001-10001
				320ms  > PA 2001+1000 ack 1
				330ms  < A 1 ack 10001`},
	}
}
