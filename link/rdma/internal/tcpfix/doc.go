// Package tcpfix makes up for behaviour of netstack's TCP that goes wrong for reasons visible on
// the link. It watches the segments of both directions and changes some of those received.
//
//	window.go     a window announced as 0 takes back what was granted
//	window.go   what was sent and no longer fits the window is never sent again
//	syn.go  the answer to a SYN that comes again has a window that is not scaled
//	handshake_data.go  data that ends a handshake counts twice in the receive buffer
//	syn.go     a copy of a SYN gets options that its SYN cookie had not
//	syn.go     a SYN sent twice makes a first round trip of a second
//	gso_sack_filter.go a loss inside a super-segment is noticed by the timeout only
//	resend.go       a FIN is given up that was sent again too often within one recovery
//	resend*.go         the count of segments in flight falls to 0, and no timer runs
//
// Each file names the behaviour, its issue upstream if there is one, and the test that tells when
// it is no longer needed. A file can then be deleted, with its field and its two calls in flows.go.
//
// What is kept of a connection is bounded, and lost without harm. All methods may be called from
// any goroutine.
package tcpfix
