package stack

import (
	"math"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// longHeaders is what tcp.SegOverheadSize leaves out of the longest headers.
const longHeaders = 128

// segmentLimit is the maximum segment size to announce with a receive buffer of that many bytes, 0
// for that of the path. A window that was closed opens when a segment of it fits, or a quarter of
// the buffer (RFC 9293 section 3.8.6.2.2; netstack announces half of what is free).
//
// netstack never does that in one case: where data ends the handshake, and tcpfix/handshake_data.go
// of package rdma had no room for that, the data counts as memory for good. It may be a whole first
// window, half of the buffer, and its overhead. The window that is left is half of the rest.
func segmentLimit(buffer int) int {
	const overhead = tcp.SegOverheadSize + longHeaders
	limit := max((buffer/2-overhead)/2, header.TCPMinimumMSS)
	if limit > math.MaxUint16 {
		return 0
	}
	return limit
}

// limitSegments applies segmentLimit to an endpoint that is to connect or to listen.
func limitSegments(ep tcpip.Endpoint, buffer int) {
	if limit := segmentLimit(buffer); limit > 0 {
		_ = ep.SetSockOptInt(tcpip.MaxSegOption, limit) // 536 and more are accepted
	}
}
