package tcp

import (
	"fmt"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// burst returns the lines for n segments of 1000 bytes from seq on; the last one has these flags.
func burst(seq, n int, last string) string {
	var b strings.Builder
	for i := range n {
		flags := "A"
		if i == n-1 {
			flags = last
		}
		fmt.Fprintf(&b, "\n> %s %d+1000 ack 1", flags, seq+1000*i)
	}
	return b.String()
}

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
			source: "RFC 6937: as many as are acknowledged, and some; stack/tcp_recovery.go",
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
				       > PA 2001+1000 ack 1
				       > PA 3001+1000 ack 1
				200ms  < A 1 ack 4001 sack 9001-10001
				       > PA 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				       > PA 6001+1000 ack 1
				210ms  < A 1 ack 7001 sack 9001-10001
				       > PA 7001+1000 ack 1
				       > PA 8001+1000 ack 1
				220ms  < A 1 ack 10001`},
		{name: "slow start goes on after a late acknowledgement has ended it",
			source: "RFC 9406 4.2; stack/tcp_recovery.go, slowStarts",
			linux:  "does not end it below 16 segments, net/ipv4/tcp_cubic.c",
			config: func(c *stack.Config) {
				c.TCP.SendBuffer = stack.BufferRange{Min: 4 << 10, Default: 40000, Max: 40000}
			},
			script: `
				0      open mss 1040 sackok ts rtt 3ms
				       write 60000 ...` + burst(1, 10, "A") + `
				3ms    < A 1 ack 10001` + burst(10001, 20, "A") + `
				6ms    < A 1 ack 11001` + burst(30001, 2, "A") + `
				7600us < A 1 ack 12001` + burst(32001, 1, "A") + ` # 21 are in flight
				9ms    < A 1 ack 33001` + burst(33001, 7, "PA") +
				burst(40001, 14, "A") + `
				       done write
				12ms   < A 1 ack 54001` + burst(54001, 6, "PA") + `
				15ms   < A 1 ack 60001
				301ms  write 54000 ...` + burst(60001, 10, "A") + `
				304ms  < A 1 ack 70001` + burst(70001, 20, "A") + `
				307ms  < A 1 ack 90001` + burst(90001, 10, "PA") +
				burst(100001, 14, "PA") + `
				       done write
				310ms  < A 1 ack 114001`},
	}
}
