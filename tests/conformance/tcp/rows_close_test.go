package tcp

import (
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// closes are how connections end in order.
func closes() []row {
	return []row{
		{name: "we close first, and TIME-WAIT lasts 60 s",
			source: "RFC 9293 3.6; packetdrill: close, TIME-WAIT",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				20ms   < FA 1 ack 2
				25ms   > A 2 ack 2
				60019ms < FA 1 ack 2
				       > A 2 ack 2
				120020ms < FA 1 ack 2
				       > R 2`},
		{name: "the peer closes first",
			source: "RFC 9293 3.6; packetdrill: close",
			script: `
				0      open mss 1000
				       < FA 1 ack 1
				       read 1 = EOF
				5ms    > A 1 ack 2
				10ms   write 100
				       > PA 1+100 ack 2
				       close
				       > FA 101 ack 2
				20ms   < A 2 ack 102
				30ms   < A 2 ack 102
				       > R 102`},
		{name: "both close at once",
			source: "RFC 9293 3.6; packetdrill: simultaneous close",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				5ms    < FA 1 ack 1
				10ms   > A 2 ack 2
				       < A 2 ack 2
				1s     < FA 1 ack 2
				       > A 2 ack 2`},
		{name: "a half-closed connection still receives",
			source: "RFC 9293 3.6; packetdrill: shutdown",
			script: `
				0      open mss 1000
				       closewrite
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				20ms   < PA 1+100 ack 2
				       read 100
				25ms   > A 2 ack 101
				30ms   < FA 101 ack 2
				       read 1 = EOF
				35ms   > A 2 ack 102`},
		{name: "a reader that is closed is told of the end, until more comes",
			source: "shutdown(2) on Linux: SHUT_RD",
			script: `
				0      open mss 1000
				       closeread
				       read 1 = EOF
				       < PA 1+100 ack 1
				5ms    > A 1 ack 101
				       read 100
				       read 1 = EOF
				10ms   write 10
				       > PA 1+10 ack 101
				20ms   < A 101 ack 11`},
		{name: "a write after the peer's reset",
			source: "POSIX write: EPIPE",
			script: `
				0      open mss 1000
				       < FA 1 ack 1
				5ms    > A 1 ack 2
				       write 10
				       > PA 1+10 ack 2
				10ms   < R 2
				       write 10 = EPIPE`},
		{name: "a FIN waits for a window",
			source: "RFC 9293 3.8.6, 3.10.4",
			script: `
				0      open mss 1000 win 500
				       write 600
				       > PA 1+500 ack 1
				       close
				10ms   < A 1 ack 501 win 0
				130ms  > A 500+1 ack 1 junk
				140ms  < A 1 ack 501 win 1000
				       > PA 501+100 ack 1
				150ms  < A 1 ack 601 win 1000
				       > FA 601 ack 1
				160ms  < A 1 ack 602`},
		{name: "a FIN is sent again",
			source: "RFC 9293 3.8; packetimpact: FIN retransmission",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				120ms  > FA 1 ack 1
				360ms  > FA 1 ack 1
				840ms  > FA 1 ack 1
				850ms  < A 1 ack 2
				860ms  < FA 1 ack 2
				865ms  > A 2 ack 2`},
		{name: "a FIN comes behind what was written",
			source: "RFC 9293 3.6",
			script: `
				0      open mss 1000 win 1000
				       write 1500
				       > A 1+1000 ack 1
				       close
				10ms   < A 1 ack 1001
				       > PA 1001+500 ack 1
				       > FA 1501 ack 1
				20ms   < A 1 ack 1502`},
		{name: "closing with unread data resets",
			source: "RFC 2525 2.17, RFC 9293 3.6.1; packetdrill: close with unread data",
			script: `
				0      open mss 1000
				       < PA 1+100 ack 1
				5ms    > A 1 ack 101
				10ms   close
				       > RA 1 ack 101`},
		{name: "data for a closed connection is answered by a reset",
			source: "RFC 9293 3.6.1, RFC 1122 4.2.2.13; packetdrill: data after close",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				20ms   < PA 1+100 ack 2
				       > RA 2 ack 1
				30ms   < PA 1+100 ack 2
				       > R 2`},
		{name: "the peer's FIN is waited for 60 s",
			source: "net.ipv4.tcp_fin_timeout; packetimpact: FIN-WAIT-2 timeout",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				60011ms < FA 1 ack 2
				       > R 2`},
		{name: "the peer's FIN is waited for without an end while we may read",
			source: "RFC 9293 3.6; packetimpact: FIN-WAIT-2 timeout",
			config: func(c *stack.Config) { c.TCP.KeepAlive = &net.KeepAliveConfig{} },
			script: `
				0      open mss 1000
				       closewrite
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				300s   < FA 1 ack 2
				       read 1 = EOF
				300005ms > A 2 ack 2`},
		{name: "a closed connection is not probed",
			source: "RFC 9293 3.8.4: keep-alives are for idle connections that a program has",
			script: `
				0      open mss 1000
				       keepalive 1s 1s 3
				1s     > A 0 ack 1
				1010ms < A 1 ack 1
				       close
				       > FA 1 ack 1
				1020ms < A 1 ack 2
				30s    < FA 1 ack 2
				30005ms > A 2 ack 2
				100s`},
		{name: "SO_LINGER of 0 resets",
			source: "RFC 9293 3.6.1; packetimpact: linger",
			script: `
				0      open mss 1000
				       write 100
				       > PA 1+100 ack 1
				       reset
				       > RA 101 ack 1
				10ms   < A 1 ack 101
				       > R 101`},
		{name: "SO_LINGER of 2 s waits for the FIN's acknowledgement",
			source: "POSIX SO_LINGER; packetimpact: linger",
			script: `
				0      open mss 1000
				       linger 2
				       close ...
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				12ms   done close`},
		{name: "SO_LINGER of 2 s gives up waiting",
			source: "POSIX SO_LINGER; packetimpact: linger",
			script: `
				0      open mss 1000
				       linger 2
				       close ...
				       > FA 1 ack 1
				120ms  > FA 1 ack 1
				360ms  > FA 1 ack 1
				840ms  > FA 1 ack 1
				1800ms > FA 1 ack 1
				2s     done close`},
		{name: "a reset does not end TIME-WAIT",
			source: "RFC 1337 3 fix 1; packetimpact: reset in TIME-WAIT",
			linux:  "ends it, unless net.ipv4.tcp_rfc1337 is set",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2
				15ms   > A 2 ack 2
				20ms   < R 2
				30ms   < FA 1 ack 2
				       > A 2 ack 2`},
		{name: "a later SYN ends TIME-WAIT",
			source: "RFC 9293 3.10.7.4, RFC 1122 4.2.2.13; packetdrill: TIME-WAIT reuse",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2
				15ms   > A 2 ack 2
				20ms   < S 0 mss 1000 renumber 100000
				       > SA 0 ack 1 mss own
				30ms   < A 1 ack 1
				       accept`},
		{name: "an earlier SYN does not end TIME-WAIT",
			source: "RFC 1122 4.2.2.13",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2
				15ms   > A 2 ack 2
				20ms   < S -500 mss 1000
				30ms   < A 2 ack 2`},
		{name: "an earlier SYN with a later timestamp ends TIME-WAIT",
			source: "RFC 6191; Linux: net/ipv4/tcp_minisocks.c tcp_timewait_state_process",
			script: `
				0      open mss 1000 ts
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2 ts 2000000 0
				15ms   > A 2 ack 2
				20ms   < S 0 mss 1000 ts 2000001 0 renumber -100000
				       > SA 0 ack 1 mss own ts
				30ms   < A 1 ack 1 ts 2000002 0
				       accept`},
		{name: "a later SYN with an earlier timestamp does not end TIME-WAIT",
			source: "RFC 7323 5.3; Linux: net/ipv4/tcp_minisocks.c tcp_timewait_state_process",
			script: `
				0      open mss 1000 ts
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2 ts 2000000 0
				15ms   > A 2 ack 2
				20ms   < S 100000 mss 1000 ts 1999999 0
				       > A 2 ack 2
				30ms   < FA 1 ack 2 ts 2000000 0
				       > A 2 ack 2`},
		{name: "a SYN in TIME-WAIT while there is something to read",
			source: "RFC 6191",
			linux:  "opens the connection at once: what is to be read is not part of TIME-WAIT",
			script: `
				0      open mss 1000 ts
				       closewrite
				       > FA 1 ack 1
				10ms   < FPA 1+100 ack 2 ts 2000000 0
				15ms   > A 2 ack 102
				20ms   < S 0 mss 1000 ts 2000001 0 renumber -100000
				       > A 2 ack 100102
				30ms   read 100`},
		{name: "a SYN in TIME-WAIT that nobody listens for",
			source: "Linux: net/ipv4/tcp_minisocks.c tcp_timewait_state_process",
			script: `
				0      connect mss 1000 ts
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2 ts 2000000 0
				15ms   > A 2 ack 2
				20ms   < S -500 mss 1000 ts 2000001 0
				       > A 2 ack 2
				30ms   < FA 1 ack 2 ts 2000000 0
				       > A 2 ack 2`},
		{name: "data in TIME-WAIT is acknowledged, not taken",
			source: "RFC 9293 3.10.7.4 first; packetimpact: outside the window, closing",
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2
				15ms   > A 2 ack 2
				20ms   < A 2+100 ack 2
				       > A 2 ack 2
				30ms   < A 2 ack 2`},
		{name: "a FIN with data that comes early waits for what is before it",
			source: "RFC 9293 3.10.7.4 eighth",
			script: `
				0      open mss 1000
				       < FPA 1001+100 ack 1
				       > A 1 ack 1
				       read 1100 ...
				10ms   < A 1+1000 ack 1
				       > A 1 ack 1102
				       done read
				       read 1 = EOF`},
		{name: "a FIN without data that comes early is lost",
			source: "RFC 9293 3.10.7.4 eighth (it should wait for what is before it)",
			linux:  "keeps it, net/ipv4/tcp_input.c tcp_data_queue_ofo",
			script: `
				0      open mss 1000
				       < FA 1001 ack 1
				       > A 1 ack 1
				       read 1000 ...
				10ms   < A 1+1000 ack 1
				       > A 1 ack 1001
				       done read
				200ms  < FA 1001 ack 1
				       read 1 = EOF
				205ms  > A 1 ack 1002`},
		{name: "a FIN with data",
			source: "RFC 9293 3.10.7.4 eighth",
			script: `
				0      open mss 1000
				       < FPA 1+100 ack 1
				       read 100
				       read 1 = EOF
				5ms    > A 1 ack 102`},
		{name: "nothing is taken behind a FIN",
			source: "RFC 9293 3.10.7.4 seventh",
			script: `
				0      open mss 1000
				       < FA 1 ack 1
				       < PA 2+100 ack 1
				       read 1 = EOF
				5ms    > A 1 ack 2`},
		{name: "closing a listener resets what nobody has accepted",
			source: "close(2) on Linux; packetimpact: close before accept",
			script: `
				0      listen
				       < S 0 mss 1000
				       > SA 0 ack 1 mss own
				10ms   < A 1 ack 1
				       < S 0 mss 1000 port 4001
				       > SA 0 ack 1 mss own port 4001
				20ms   unlisten
				       > RA 1 ack 1
				5s     < A 1 ack 1 port 4001
				       > R 1 port 4001`},
		{name: "a connection closed by both is gone",
			source: "RFC 9293 3.6: LAST-ACK",
			script: `
				0      open mss 1000
				       < FA 1 ack 1
				       close
				       > FA 1 ack 2
				1ms    < A 2 ack 2
				       count established 0`},
		{name: "the last FIN is sent again",
			source: "RFC 9293 3.6: LAST-ACK",
			script: `
				0      open mss 1000
				       < FA 1 ack 1
				       close
				       > FA 1 ack 2
				120ms  > FA 1 ack 2
				130ms  < A 2 ack 2`},
		{name: "TIME-WAIT is as long as configured",
			source: "TCPTimeWaitTimeoutOption of netstack",
			config: netstackTCP(new(tcpip.TCPTimeWaitTimeoutOption(time.Second))),
			script: `
				0      open mss 1000
				       close
				       > FA 1 ack 1
				10ms   < FA 1 ack 2
				15ms   > A 2 ack 2
				1011ms < FA 1 ack 2
				       > R 2`},
	}
}
