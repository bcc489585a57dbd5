// Package tcpfix makes up for behaviour of netstack's TCP that goes wrong for reasons visible on
// the link. It watches the segments of both directions and changes some of them.
//
//	syn.go             synRTTFix     a SYN sent twice makes a first round trip of a second
//	                   synEchoFix    a SYN-ACK echoes the timestamp of the first of several SYNs
//	                   synWindowFix  the answer to a copy of a SYN has a window without scale
//	                   optionSet     a copy of a SYN gets options that its SYN cookie lacked
//	                   synBurstFix   a wrong ACK in a dial has 18 SYNs sent at once
//	                   timeWaitFix   a SYN in TIME-WAIT counts without its timestamp
//	handshake_data.go  handshakeData data that ends a handshake fills the buffer twice, and one
//	                                 without the SYN's timestamp does not end it
//	gso_sack_filter.go gsoSACKFilter a loss inside a super-segment waits for the timeout
//	resend.go          resender      the count in flight falls to 0, and no timer runs
//	                   round         a flight that RACK gave up is not sent again
//	                   goBack        RACK takes a flight for lost after a timeout
//	                   hideTail      RACK does so at the SACK of a tail loss probe
//	                   finLeft       a FIN is given up that was sent too often in one recovery
//	repair.go          repair        several losses inside a super-segment cost a timeout each
//	reorder.go         reorderWindow what three others overtake is lost for good
//	reports.go         reportGate    netstack falls behind the acknowledgements of a long flight
//	paced.go           pacedResends  what is lost leaves in one burst, and is lost again
//	eifel.go           eifel         nothing is undone of a recovery in which nothing was lost
//	window.go          zeroWindow    a window announced as 0 takes back what was granted
//	                   narrowWindow  what no longer fits the window is never sent again
//	duplicates.go      duplicates    an ACK does not say that data has come twice
//	icmp.go            forged        a message about a segment that was never sent counts
//	                   raisePathMTU  a path MTU below the least becomes segments of one byte
//	                   refusal       a flight refused as too big waits for the timeout
//
// Each names the behaviour, its issue upstream if there is one, and the test that tells when it is
// no longer needed. It can then be deleted, with its field and its two calls in flows.go. The table
// of docs/netstack-workarounds.md has the effect of each.
//
// What is kept of a connection is bounded, and lost without harm. All methods may be called from
// any goroutine.
package tcpfix
