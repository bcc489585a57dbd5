package upstream

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// TestClosing: the acknowledgement of our FIN overtakes the peer's FIN, which was sent before it.
// The connection stays in CLOSING for good, instead of going to TIME-WAIT.
func TestClosing(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000))
	h.ok(c.CloseWrite())
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 2, ack: 2, win: -1})
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack | fin, seq: 1, ack: 1, win: -1})
	h.sent()
	h.ok(c.Close())
	h.advance(10 * time.Minute)
	state := tcp.EndpointState(h.state())
	shows(t, "21-closing", state == tcp.StateClosing, "10 minutes later the connection is in %v",
		state)
}

// TestKeepAliveAfterClose: a connection that the program has closed, and the peer has acknowledged,
// goes on being probed in FIN-WAIT-2.
func TestKeepAliveAfterClose(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000))
	h.keepAlive(5 * time.Second)
	h.ok(c.Close())
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 2, win: -1})
	probes := 0
	for range 12 {
		for _, s := range h.sentFor(5 * time.Second) {
			if s.flags == ack {
				probes++
				h.send(segment{flags: ack, seq: 1, ack: 2, win: -1})
			}
		}
	}
	shows(t, "22-keep-alive", probes > 0, "%d probes in a minute, of a connection that nobody has",
		probes)
}
