package tcp

import "gvisor.dev/gvisor/pkg/tcpip"

// selective are the SACK blocks that we send.
func selective() []row {
	return []row{
		{name: "blocks tell what has arrived, the latest first",
			source: "RFC 2018 4; packetdrill: SACK blocks sent",
			script: `
				0      open mss 1036 sackok
				       < A 101+100 ack 1
				       > A 1 ack 1 sack 101-201
				       < A 301+100 ack 1
				       > A 1 ack 1 sack 301-401 101-201
				       < A 501+100 ack 1
				       > A 1 ack 1 sack 501-601 301-401 101-201
				       < A 201+100 ack 1
				       > A 1 ack 1 sack 101-401 501-601
				       < A 1+100 ack 1
				       > A 1 ack 401 sack 501-601
				       < A 401+100 ack 1
				       > A 1 ack 601
				       read 600`},
		{name: "four blocks fit, and three beside a timestamp",
			source: "RFC 2018 3; packetdrill: SACK blocks sent",
			script: `
				0      open mss 1036 sackok
				       <+ A 101+10 ack 1
				       <+ A 201+10 ack 1
				       <+ A 301+10 ack 1
				       <+ A 401+10 ack 1
				       < A 501+10 ack 1
				       > A 1 ack 1 sack 101-111
				       > A 1 ack 1 sack 201-211 101-111
				       > A 1 ack 1 sack 301-311 201-211 101-111
				       > A 1 ack 1 sack 401-411 301-311 201-211 101-111
				       > A 1 ack 1 sack 501-511 401-411 301-311 201-211`},
		{name: "three blocks fit beside a timestamp",
			source: "RFC 2018 3",
			script: `
				0      open mss 1040 sackok ts
				       < A 101+10 ack 1
				       > A 1 ack 1 sack 101-111
				       < A 201+10 ack 1
				       > A 1 ack 1 sack 201-211 101-111
				       < A 301+10 ack 1
				       > A 1 ack 1 sack 301-311 201-211 101-111
				       < A 401+10 ack 1
				       > A 1 ack 1 sack 401-411 301-311 201-211`},
		{name: "no blocks without agreement",
			source: "RFC 2018 2",
			script: `
				0      open mss 1000
				       < A 101+100 ack 1
				       > A 1 ack 1`},
		{name: "no blocks when turned off",
			source: "TCPSACKEnabled of netstack",
			config: netstackTCP(new(tcpip.TCPSACKEnabled(false))),
			script: `
				0      listen
				       < S 0 mss 1000 sackok
				       > SA 0 ack 1 mss own
				10ms   < A 1 ack 1
				       accept
				       < A 101+100 ack 1
				       > A 1 ack 1`},
		{name: "no blocks once we have closed our half",
			source: "RFC 2018 4 (there should be)",
			linux:  "sends them, net/ipv4/tcp_output.c tcp_established_options",
			script: `
				0      open mss 1036 sackok
				       closewrite
				       > FA 1 ack 1
				10ms   < A 1 ack 2
				       < A 101+100 ack 2
				       > A 2 ack 1
				       < A 1+100 ack 2
				       > A 2 ack 201
				       read 200`},
		{name: "what arrives twice out of order",
			source: "RFC 2018 4, RFC 2883 4.2",
			script: `
				0      open mss 1036 sackok
				       < A 101+100 ack 1
				       > A 1 ack 1 sack 101-201
				       < A 101+100 ack 1
				       > A 1 ack 1 sack 101-201 101-201
				       < A 151+100 ack 1
				       > A 1 ack 1 sack 151-201 101-251
				       < A 1+100 ack 1
				       > A 1 ack 251
				       read 250`},
		{name: "what arrives twice is named in a block",
			source: "RFC 2883 4.1",
			script: `
				0      open mss 1036 sackok
				       < A 1+100 ack 1
				5ms    > A 1 ack 101
				       < A 1+100 ack 1
				       > A 1 ack 101 sack 1-101
				       < A 51+100 ack 1
				       > A 1 ack 151 sack 51-101
				       read 150`},
		{name: "what arrives twice beside a timestamp, in front of three blocks",
			source: "RFC 2883 4.1",
			script: `
				0      open mss 1040 sackok ts
				       < A 1+100 ack 1
				5ms    > A 1 ack 101
				       < A 1+100 ack 1
				       > A 1 ack 101 sack 1-101
				       < A 201+10 ack 1
				       > A 1 ack 101 sack 201-211
				       < A 301+10 ack 1
				       > A 1 ack 101 sack 301-311 201-211
				       < A 401+10 ack 1
				       > A 1 ack 101 sack 401-411 301-311 201-211
				       < A 1+50 ack 1
				       > A 1 ack 101 sack 1-51 401-411 301-311`},
		{name: "both copies come before the answer to the first",
			source: "RFC 2883 4.1",
			script: `
				0      open mss 1036 sackok
				       < A 1+100 ack 1
				5ms    > A 1 ack 101
				       read 100
				       <+ A 101+100 ack 1
				       < A 101+100 ack 1
				       > A 1 ack 201 sack 101-201
				       read 100`},
		{name: "a keep-alive probe is a duplicate if it has a byte",
			source: "RFC 2883 4; net/ipv4/tcp_input.c tcp_send_dupack",
			script: `
				0      open mss 1036 sackok
				       < A 1+100 ack 1
				5ms    > A 1 ack 101
				       < A 100 ack 1
				       > A 1 ack 101
				       < A 100+1 ack 1
				       > A 1 ack 101 sack 100-101
				       read 100`},
		{name: "no duplicate is named without agreement",
			source: "RFC 2018 2",
			script: `
				0      open mss 1000
				       < A 1+100 ack 1
				5ms    > A 1 ack 101
				       < A 1+100 ack 1
				       > A 1 ack 101
				       read 100`},
		{name: "duplicates are named once our half is closed",
			source: "RFC 2883 4",
			script: `
				0      open mss 1036 sackok
				       closewrite
				       > FA 1 ack 1
				10ms   < A 1+100 ack 2
				15ms   > A 2 ack 101
				       < A 1+100 ack 2
				       > A 2 ack 101 sack 1-101
				       read 100`},
		{name: "blocks are of no use if they are nonsense",
			source: "RFC 2018 8; packetdrill: SACK of what was never sent",
			linux:  "sends its probe at 20 ms: an ACK of nothing new does not put it off",
			script: `
				0      open mss 1036 sackok
				       write 1000
				       > PA 1+1000 ack 1
				1us    write 1000
				       > PA 1001+1000 ack 1
				10ms   < A 1 ack 1 sack 5001-6001
				       < A 1 ack 1 sack 2001-1001
				       < A 1 ack 1 sack 1-1
				30001us > PA 1001+1000 ack 1
				40ms   < A 1 ack 2001`},
		{name: "a block that is taken back is sent again after the timeout",
			source: "RFC 2018 8: reneging",
			script: `
				0      open mss 1036 sackok
				       write 1000
				       > PA 1+1000 ack 1
				1us    write 1000
				       > PA 1001+1000 ack 1
				10ms   < A 1 ack 1 sack 1001-2001
				22500us > PA 1+1000 ack 1
				30ms   < A 1 ack 1001
				150ms  > PA 1001+1000 ack 1
				160ms  < A 1 ack 2001`},
	}
}
