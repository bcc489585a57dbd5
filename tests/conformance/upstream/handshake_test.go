package upstream

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// TestSYNTimestamp: the second copy of a SYN-ACK has the timestamp of the first, so that the answer
// to it makes a round trip of 1.01 s, and the timeout of the first data is 3 s.
func TestSYNTimestamp(t *testing.T) {
	h := newHost(t, false)
	h.listen(10)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), stamp(5000, 0))})
	first := h.sentFor(time.Second)
	if len(first) != 2 {
		t.Fatalf("%d SYN-ACKs in a second", len(first))
	}
	val, _, _ := first[1].stamp()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 1, win: -1, options: options(stamp(6010, val))})
	c := h.accept()
	h.write(c, 100)
	sent := h.sentFor(4 * time.Second)
	if len(sent) < 2 {
		t.Fatal("the data is not sent again in 4 s")
	}
	timeout := sent[1].at - sent[0].at
	was, _, _ := first[0].stamp()
	shows(t, "01-syn-timestamp", val == was && timeout > 2*time.Second, "the SYN-ACK of 1 s later "+
		"has the timestamp of the first; the first timeout of data is %v, the round trip 10 ms",
		timeout)
}

// TestSYNEcho: the second copy of a SYN-ACK echoes the timestamp of the first SYN although a later
// copy of it has come.
func TestSYNEcho(t *testing.T) {
	h := newHost(t, false)
	h.listen(10)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), stamp(5000, 0))})
	h.sent()
	h.advance(990 * time.Millisecond)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), stamp(5990, 0))})
	sent := h.sentFor(100 * time.Millisecond)
	_, echo, _ := sent[len(sent)-1].stamp()
	shows(t, "02-syn-echo", sent[len(sent)-1].flags&syn != 0 && echo == 5000,
		"the SYN-ACK echoes %d, the last SYN had 5990", echo)
}

// TestHandshakeWithoutTimestamp: the segment that ends a handshake is dropped if it has no
// timestamp where both SYNs had one.
func TestHandshakeWithoutTimestamp(t *testing.T) {
	h := newHost(t, false)
	h.listen(10)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), stamp(5000, 0))})
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 1, win: -1})
	h.send(segment{flags: ack | psh, seq: 1, ack: 1, win: -1, size: 10})
	c := h.accept()
	shows(t, "10-handshake-timestamp", c == nil, "accepted: %v", c != nil)
}

// TestCookieOptions: a SYN that was answered with a SYN cookie, which has neither a window scale
// nor SACK, gets both when it comes again and there is room.
func TestCookieOptions(t *testing.T) {
	h := newHost(t, false)
	h.listen(2)
	h.send(segment{port: 4001, flags: syn, win: -1, options: options(mss(1000))})
	h.sent()
	opts := options(mss(1400), sackOK(), stamp(5000, 0), scale(7))
	h.send(segment{flags: syn, win: -1, options: opts})
	cookie := h.last()
	h.advance(10 * time.Millisecond)
	h.send(segment{port: 4001, flags: ack, seq: 1, ack: 1, win: -1})
	t.Log("accepted: ", h.accept() != nil)
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: syn, win: -1, options: opts})
	again := h.last()
	before := header.ParseSynOptions(cookie.options, true)
	after := header.ParseSynOptions(again.options, true)
	shows(t, "11-cookie-options", before.WS < 0 && after.WS >= 0 && cookie.flags == again.flags,
		"the first answer has window scale %d (-1: none), the second %d", before.WS, after.WS)
}

// TestSYNWindow: the ACK that answers a SYN which comes again in SYN-RCVD has a window that is not
// scaled. It is not a SYN, so that the peer multiplies it.
func TestSYNWindow(t *testing.T) {
	h := newHost(t, false)
	h.listen(10)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), scale(7))})
	first := h.last()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), scale(7))})
	answer := h.last()
	ws := header.ParseSynOptions(first.options, true).WS
	shows(t, "12-syn-window", answer.flags == ack && ws > 0 && answer.win > first.win>>ws,
		"its window is %d, which is %d bytes at the scale %d that was offered; %d were", answer.win,
		answer.win<<ws, ws, first.win)
}

// TestSYNBurst: an ACK with a wrong number during a dial has the SYN sent again after some 2, 4, 8
// microseconds and so on.
func TestSYNBurst(t *testing.T) {
	h := newHost(t, false)
	h.dial()
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 5000, ack: 9000, win: -1})
	syns := 0
	for _, s := range h.sentFor(time.Second) {
		if s.flags&syn != 0 {
			syns++
		}
	}
	shows(t, "16-syn-burst", syns > 5, "%d SYNs in a second", syns)
}

// TestTimeWaitTimestamp: a SYN with a later timestamp, and a sequence number behind that of the old
// connection, is not answered in TIME-WAIT.
func TestTimeWaitTimestamp(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000), stamp(5000, 0))
	h.ok(c.Close())
	val, _, _ := h.last().stamp()
	h.send(segment{flags: ack | fin, seq: 1, ack: 2, win: -1, options: options(stamp(6000, val))})
	h.sent()
	h.advance(10 * time.Millisecond)
	h.origin -= 1 << 20
	h.send(segment{flags: syn, win: -1, options: options(mss(1000), stamp(6010, 0))})
	answers := h.sentFor(time.Second)
	shows(t, "17-time-wait-timestamp", len(answers) == 0, "%d answers to the SYN", len(answers))
}

// TestHandshakeData: data that ends a handshake counts twice in the receive buffer and is taken off
// once. With segments behind a gap the buffer is full for good: the segment that is missing is
// dropped, too.
func TestHandshakeData(t *testing.T) {
	size := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 4096, Max: 4096}
	h := newHost(t, false, &size)
	h.listen(10)
	h.send(segment{flags: syn, win: -1, options: options(mss(1000))})
	h.sent()
	h.advance(10 * time.Millisecond)
	h.send(segment{flags: ack, seq: 1, ack: 1, win: -1, size: 1440})
	c := h.accept()
	h.read(c, 1440)
	h.sent()
	for _, seq := range []uint32{1542, 1742, 1942} {
		h.send(segment{flags: ack, seq: seq, ack: 1, win: -1, size: 200})
	}
	h.sent()
	h.send(segment{flags: ack, seq: 1441, ack: 1, win: -1, size: 101})
	got := h.sent()
	acked := uint32(0)
	if len(got) > 0 {
		acked = got[len(got)-1].ack
	}
	shows(t, "09-handshake-data", acked < 2142,
		"the window was open, and what filled the gap is acknowledged up to %d of 2142", acked)
}
