package upstream

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// TestWindowOrder: the window of an acknowledgement that a later one has overtaken counts. What was
// sent does not fit it and is lost: after the timeout netstack sends nothing and has no timer.
func TestWindowOrder(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000))
	h.write(c, 3000)
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 1001, win: 8000})
	h.send(segment{flags: ack, seq: 1, ack: 1, win: 500})
	again := h.sentFor(5 * time.Minute)
	shows(t, "08-window-order", len(again) == 0, "%d segments in 5 minutes, 2000 bytes are not "+
		"acknowledged", len(again))
}

// TestWindowTakenBack: a window that is rounded down to 0 takes back what was granted: a segment
// that was sent by the window before it, and acknowledges, is dropped.
func TestWindowTakenBack(t *testing.T) {
	size := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 8192, Max: 8 << 20}
	h := newHost(t, false, &size)
	c := h.open(mss(1000), scale(7))
	for seq := uint32(1); seq < 4001; seq += 1000 {
		h.send(segment{flags: ack, seq: seq, ack: 1, win: -1, size: 1000})
	}
	h.sent()
	h.write(c, 100)
	win := h.last().win
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 4050, ack: 101, win: -1}) // 49 bytes before it are lost
	again := 0
	for _, s := range h.sentFor(2 * time.Second) {
		if s.size == 100 {
			again++
		}
	}
	shows(t, "13-window-taken-back", win == 0 && again > 0, "the window was 4096 bytes behind 1, "+
		"and is %d behind 4001; an acknowledgement at 4050 is dropped, and the data that it "+
		"covers sent again %d times in 2 s", win, again)
}

// TestAckDelay: the acknowledgement of a small segment leaves alone, although the program's answer
// comes a millisecond later.
func TestAckDelay(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000))
	packets := 0
	for n := range uint32(10) {
		h.send(segment{flags: ack, seq: 1 + 100*n, ack: 1 + 50*n, win: -1, size: 100})
		packets += len(h.sentFor(time.Millisecond))
		h.read(c, 100)
		h.write(c, 50)
		packets += len(h.sentFor(9 * time.Millisecond))
	}
	shows(t, "30-ack-delay", packets > 15, "%d packets for 10 answers", packets)
}

// TestFullLink: what the link refuses for want of room counts as sent, and is sent again by the
// timeout.
func TestFullLink(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000))
	h.link.Drain()
	full := h.fill()
	h.write(c, 1000)
	began := h.clock.since()
	h.link.Drain()
	again := h.sentFor(5 * time.Second)
	if len(again) == 0 {
		t.Fatal("nothing is sent again")
	}
	waited := again[0].at - began
	shows(t, "31-full-link", waited > 100*time.Millisecond, "the queue had %d packets, and has "+
		"room at once; the segment leaves %v later, the round trip is 10 ms", full, waited)
}
