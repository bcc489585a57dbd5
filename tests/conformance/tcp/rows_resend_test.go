package tcp

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// resends are how lost data is sent again.
func resends() []row {
	return []row{
		{name: "the timeout is 120 ms at a short round trip, and doubles",
			source: "RFC 6298 2.4, 5.5; packetdrill: RTO",
			linux:  "200 ms, net.ipv4.tcp_rto_min_us",
			script: `
				0       open mss 1000
				        write 100
				        > PA 1+100 ack 1
				120ms   > PA 1+100 ack 1
				360ms   > PA 1+100 ack 1
				840ms   > PA 1+100 ack 1
				850ms   < A 1 ack 101`},
		{name: "the timeout doubles for as long as the peer is silent",
			source: "RFC 6298 5.5; packetimpact: tcp_retransmits",
			linux:  "200 ms, 11 times in 130 s",
			script: `
				0       open mss 1000 sackok ts
				        write 100
				        > PA 1+100 ack 1
				220ms   > PA 1+100 ack 1
				340ms   > PA 1+100 ack 1
				580ms   > PA 1+100 ack 1
				1060ms  > PA 1+100 ack 1
				2020ms  > PA 1+100 ack 1
				3940ms  > PA 1+100 ack 1
				7780ms  > PA 1+100 ack 1
				15460ms > PA 1+100 ack 1
				30820ms > PA 1+100 ack 1
				61540ms > PA 1+100 ack 1
				122980ms > PA 1+100 ack 1
				130s    < A 1 ack 101`},
		{name: "the timeout doubles, with a long round trip and without SACK, too",
			source: "RFC 6298 5.5",
			script: `
				0       open mss 1000 ts rtt 200ms
				        write 100
				        > PA 1+100 ack 1
				600ms   > PA 1+100 ack 1
				1800ms  > PA 1+100 ack 1
				4200ms  > PA 1+100 ack 1
				9s      > PA 1+100 ack 1
				18600ms > PA 1+100 ack 1
				37800ms > PA 1+100 ack 1
				76200ms > PA 1+100 ack 1
				130s    < A 1 ack 101`},
		{name: "the timeout is three round trips after the first sample",
			source: "RFC 6298 2.2",
			script: `
				0       open mss 1000 rtt 100ms
				        write 100
				        > PA 1+100 ack 1
				300ms   > PA 1+100 ack 1
				900ms   > PA 1+100 ack 1
				910ms   < A 1 ack 101`},
		{name: "the timeout falls with equal samples",
			source: "RFC 6298 2.3: RTTVAR is 37.5 ms after the second sample",
			script: `
				0       open mss 1000 rtt 100ms
				        write 100
				        > PA 1+100 ack 1
				100ms   < A 1 ack 101
				        write 100
				        > PA 101+100 ack 1
				350ms   > PA 101+100 ack 1
				360ms   < A 1 ack 201`},
		{name: "the timeout rises with a late acknowledgement",
			source: "RFC 6298 2.3: RTTVAR is 62.5 ms, SRTT 112.5 ms",
			script: `
				0       open mss 1000 rtt 100ms
				        write 100
				        > PA 1+100 ack 1
				200ms   < A 1 ack 101
				        write 100
				        > PA 101+100 ack 1
				562500us > PA 101+100 ack 1
				600ms   < A 1 ack 201`},
		{name: "the answer to a segment sent twice counts as a sample, from the second",
			source: "RFC 6298 3 (it must not, without timestamps: Karn)",
			linux:  "takes no sample, net/ipv4/tcp_input.c tcp_ack_update_rtt",
			script: `
				0       open mss 1000 rtt 100ms
				        write 100
				        > PA 1+100 ack 1
				300ms   > PA 1+100 ack 1
				310ms   < A 1 ack 101
				        write 100
				        > PA 101+100 ack 1
				638750us > PA 101+100 ack 1
				700ms   < A 1 ack 201`},
		{name: "the first timeout is 1 s after two SYN-ACKs and without timestamps",
			source: "RFC 6298 5.7 (it would be 3 s); RFC 6298 2.1",
			linux:  "3 s, net/ipv4/tcp_input.c tcp_synack_rtt_meas",
			script: `
				0       listen
				        < S 0 mss 1000
				        > SA 0 ack 1 mss own
				1s      > SA 0 ack 1 mss own
				1010ms  < A 1 ack 1
				        accept
				        write 100
				        > PA 1+100 ack 1
				2010ms  > PA 1+100 ack 1
				2020ms  < A 1 ack 101`},
		{name: "a connection ends with ETIMEDOUT after so many timeouts",
			source: "RFC 9293 3.8.3; packetimpact: retransmits",
			config: netstackTCP(new(tcpip.TCPMaxRetriesOption(3))),
			script: `
				0       open mss 1000
				        write 100
				        > PA 1+100 ack 1
				        read 1 ...
				120ms   > PA 1+100 ack 1
				360ms   > PA 1+100 ack 1
				840ms   > PA 1+100 ack 1
				1800ms  done read = ETIMEDOUT
				        write 1 = EPIPE
				5s      < A 1 ack 101
				        > R 101`},
		{name: "after a timeout one segment is sent, then two for each acknowledged",
			source: "RFC 5681 3.1; packetdrill: RTO slow start",
			script: `
				0       open mss 1000
				        write 5000
				        > A 1+1000 ack 1
				        > A 1001+1000 ack 1
				        > A 2001+1000 ack 1
				        > A 3001+1000 ack 1
				        > PA 4001+1000 ack 1
				120ms   > A 1+1000 ack 1
				130ms   < A 1 ack 1001
				        > A 1001+1000 ack 1
				        > A 2001+1000 ack 1
				140ms   < A 1 ack 5001`},
		{name: "the third duplicate acknowledgement has a segment sent again",
			source: "RFC 5681 3.2; packetdrill: fast retransmit",
			script: `
				0      open mss 1000
				       write 5000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > PA 4001+1000 ack 1
				10ms   < A 1 ack 1001
				       < A 1 ack 1001
				11ms   < A 1 ack 1001
				12ms   < A 1 ack 1001
				       > A 1001+1000 ack 1
				13ms   < A 1 ack 1001
				22ms   < A 1 ack 5001`},
		{name: "duplicate acknowledgements count for nothing before the first of data",
			source: "RFC 6582 3.2 step 2: they do not cover more than the SYN",
			linux:  "sends the segment again, net/ipv4/tcp_input.c tcp_time_to_recover",
			script: `
				0      open mss 1000
				       write 4000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				       > PA 3001+1000 ack 1
				10ms   < A 1 ack 1
				       < A 1 ack 1
				       < A 1 ack 1
				120ms  > A 1+1000 ack 1
				130ms  < A 1 ack 4001`},
		{name: "what is no duplicate acknowledgement does not count",
			source: "RFC 5681 2: same number and window, no data, no FIN",
			script: `
				0      open mss 1000
				       write 2000
				       > A 1+1000 ack 1
				       > PA 1001+1000 ack 1
				10ms   < A 1 ack 1 win 65000
				11ms   < A 1 ack 1 win 64000
				12ms   < A 1 ack 1 win 63000
				13ms   < A 1 ack 1 win 62000
				14ms   < A 1 ack 0 win 62000
				15ms   < A 1 ack 0 win 62000
				16ms   < A 1 ack 0 win 62000
				20ms   < A 1 ack 2001`},
		{name: "two losses in a window: the second is sent again at the first's acknowledgement",
			source: "RFC 6582 3.2; packetdrill: NewReno",
			script: `
				0      open mss 1000
				       write 6000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > PA 5001+1000 ack 1
				10ms   < A 1 ack 1001
				       < A 1 ack 1001
				       < A 1 ack 1001
				       < A 1 ack 1001
				       > A 1001+1000 ack 1
				20ms   < A 1 ack 3001
				       > A 3001+1000 ack 1
				30ms   < A 1 ack 6001`},
		{name: "ten segments are sent at first, and two more for each acknowledged",
			source: "RFC 6928, RFC 5681 3.1; packetdrill: slow start",
			script: `
				0      open mss 1000
				       write 20000
				       > A 1+1000 ack 1
				       > A 1001+1000 ack 1
				       > A 2001+1000 ack 1
				       > A 3001+1000 ack 1
				       > A 4001+1000 ack 1
				       > A 5001+1000 ack 1
				       > A 6001+1000 ack 1
				       > A 7001+1000 ack 1
				       > A 8001+1000 ack 1
				       > A 9001+1000 ack 1
				10ms   < A 1 ack 2001
				       > A 10001+1000 ack 1
				       > A 11001+1000 ack 1
				       > A 12001+1000 ack 1
				       > A 13001+1000 ack 1
				11ms   < A 1 ack 4001
				       > A 14001+1000 ack 1
				       > A 15001+1000 ack 1
				       > A 16001+1000 ack 1
				       > A 17001+1000 ack 1
				20ms   < A 1 ack 18001
				       > A 18001+1000 ack 1
				       > PA 19001+1000 ack 1
				30ms   < A 1 ack 20001`},
		{name: "a lone segment is probed for after two round trips and 200 ms",
			source: "RFC 8985 7.2; packetimpact: RACK and tail loss probes",
			linux:  "at the timeout if earlier, net/ipv4/tcp_output.c tcp_schedule_loss_probe",
			script: `
				0       open mss 1040 sackok
				        write 100
				        > PA 1+100 ack 1
				220ms   > PA 1+100 ack 1
				340ms   > PA 1+100 ack 1
				350ms   < A 1 ack 101`},
		{name: "the last of some segments is probed for after two round trips",
			source: "RFC 8985 7.2; packetimpact: RACK and tail loss probes",
			linux:  "repairs the first at once; the link waits for 2.5 ms, tcpfix/reorder.go",
			script: `
				0       open mss 1036 sackok
				        write 1000
				        > PA 1+1000 ack 1
				1us     write 1000
				        > PA 1001+1000 ack 1
				20001us > PA 1001+1000 ack 1
				30ms    < A 1 ack 1 sack 1001-2001
				32500us > PA 1+1000 ack 1
				40ms    < A 1 ack 2001`},
		{name: "a segment is lost when one sent later has arrived a quarter round trip ago",
			source: "RFC 8985 6.2; packetimpact: RACK",
			linux:  "after 2.5 ms; the link waits as long, then netstack 10 ms, stack/netstack.go",
			script: `
				0       open mss 1036 sackok
				        write 1000
				        > PA 1+1000 ack 1
				1us     write 1000
				        > PA 1001+1000 ack 1
				2us     write 1000
				        > PA 2001+1000 ack 1
				10ms    < A 1 ack 1 sack 1001-2001
				22500us > PA 1+1000 ack 1
				30ms    < A 1 ack 3001`},
		{name: "a segment is lost when three sent later have arrived",
			source: "RFC 8985 6.2 step 4; packetdrill: SACK recovery",
			linux:  "at once, and undoes it when the segment was only late; see tcpfix/reorder.go",
			script: `
				0       open mss 1036 sackok
				        write 1000
				        > PA 1+1000 ack 1
				1us     write 1000
				        > PA 1001+1000 ack 1
				2us     write 1000
				        > PA 2001+1000 ack 1
				3us     write 1000
				        > PA 3001+1000 ack 1
				10ms    < A 1 ack 1 sack 1001-4001
				12500us > PA 1+1000 ack 1
				20ms    < A 1 ack 4001`},
		{name: "a segment that is only late is not sent again",
			source: "RFC 8985 6.2; packetimpact: RACK with reordering",
			script: `
				0       open mss 1036 sackok
				        write 1000
				        > PA 1+1000 ack 1
				1us     write 1000
				        > PA 1001+1000 ack 1
				10ms    < A 1 ack 1 sack 1001-2001
				12ms    < A 1 ack 2001
				1s`},
		{name: "a segment that three overtake is not sent again",
			source: "RFC 8985 6.2 (a quarter of the round trip, 2.5 ms); tcpfix/reorder.go",
			linux:  "sends it again, and undoes what that did to the congestion window",
			script: `
				0       open mss 1036 sackok
				        write 1000
				        > PA 1+1000 ack 1
				1us     write 1000
				        > PA 1001+1000 ack 1
				2us     write 1000
				        > PA 2001+1000 ack 1
				3us     write 1000
				        > PA 3001+1000 ack 1
				10ms    < A 1 ack 1 sack 1001-2001
				        < A 1 ack 1 sack 1001-3001
				        < A 1 ack 1 sack 1001-4001
				12ms    < A 1 ack 4001
				1s`},
		{name: "Nagle: a small segment waits for the acknowledgement of what is under way",
			source: "RFC 9293 3.7.4, RFC 896; packetdrill: Nagle",
			script: `
				0      open mss 1000
				       nodelay off
				       write 10
				       > PA 1+10 ack 1
				       write 10
				       write 20
				10ms   < A 1 ack 11
				       > PA 11+30 ack 1
				       write 5
				       nodelay on
				       > PA 41+5 ack 1
				20ms   < A 1 ack 46`},
		{name: "Nagle: a whole segment waits, too, where the NIC cuts segments",
			source: "RFC 9293 3.7.4 (it should not: a segment is whole with one MSS)",
			linux:  "sends it, net/ipv4/tcp_output.c tcp_nagle_test",
			script: `
				0      open mss 1000
				       nodelay off
				       write 10
				       > PA 1+10 ack 1
				       write 1000
				10ms   < A 1 ack 11
				       > PA 11+1000 ack 1
				20ms   < A 1 ack 1011`},
		{name: "without Nagle a small segment is sent at once",
			source: "package net: TCP_NODELAY is on",
			script: `
				0      open mss 1000
				       write 10
				       > PA 1+10 ack 1
				       write 20
				       > PA 11+20 ack 1
				10ms   < A 1 ack 31`},
		{name: "the MSS is 536 when the peer names none",
			source: "RFC 9293 3.7.1; packetimpact: MSS",
			script: `
				0      open
				       write 600
				       > A 1+536 ack 1
				       > PA 537+64 ack 1
				10ms   < A 1 ack 601`},
		{name: "a tiny MSS counts as 48",
			source: "CVE-2019-11479; net.ipv4.tcp_min_snd_mss",
			script: `
				0      open mss 1
				       write 60
				       > A 1+48 ack 1
				       > PA 49+12 ack 1
				10ms   < A 1 ack 61`},
		{name: "the MSS has room for all options a segment may have",
			source: "RFC 6691 2",
			linux:  "takes off the options that it has, net/ipv4/tcp_output.c tcp_current_mss",
			script: `
				0      open mss 1040 sackok ts
				       write 1100
				       > A 1+1000 ack 1
				       > PA 1001+100 ack 1
				10ms   < A 1 ack 1101`},
		{name: "a larger MSS than the link's is not used",
			source: "RFC 9293 3.7.1",
			only:   4,
			script: `
				0      open mss 9000
				       write 1500
				       > A 1+1460 ack 1
				       > PA 1461+40 ack 1
				10ms   < A 1 ack 1501`},
		{name: "an idle connection begins with ten segments again",
			source: "RFC 5681 4.1",
			script: `
				0      open mss 100
				       write 1500
				       > A 1+100 ack 1
				       > A 101+100 ack 1
				       > A 201+100 ack 1
				       > A 301+100 ack 1
				       > A 401+100 ack 1
				       > A 501+100 ack 1
				       > A 601+100 ack 1
				       > A 701+100 ack 1
				       > A 801+100 ack 1
				       > A 901+100 ack 1
				10ms   < A 1 ack 1001
				       > A 1001+100 ack 1
				       > A 1101+100 ack 1
				       > A 1201+100 ack 1
				       > A 1301+100 ack 1
				       > PA 1401+100 ack 1
				20ms   < A 1 ack 1501
				1s     write 1500
				       > A 1501+100 ack 1
				       > A 1601+100 ack 1
				       > A 1701+100 ack 1
				       > A 1801+100 ack 1
				       > A 1901+100 ack 1
				       > A 2001+100 ack 1
				       > A 2101+100 ack 1
				       > A 2201+100 ack 1
				       > A 2301+100 ack 1
				       > A 2401+100 ack 1
				1010ms < A 1 ack 3001 # of what was never sent
				1020ms < A 1 ack 2501
				       > A 2501+100 ack 1
				       > A 2601+100 ack 1
				       > A 2701+100 ack 1
				       > A 2801+100 ack 1
				       > PA 2901+100 ack 1
				1030ms < A 1 ack 3001`},
		{name: "a closed connection with a silent peer is given up after OrphanTimeout",
			source: "RFC 5482; packetimpact: user timeout",
			config: func(c *stack.Config) { c.TCP.OrphanTimeout = 2 * time.Second },
			script: `
				0       open mss 1000
				        write 100
				        > PA 1+100 ack 1
				        close
				        > FA 101 ack 1
				120ms   > PA 1+100 ack 1
				360ms   > PA 1+100 ack 1
				840ms   > PA 1+100 ack 1
				1800ms  > PA 1+100 ack 1
				3s      < A 1 ack 102
				        > R 102`},
	}
}
