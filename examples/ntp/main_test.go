package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// readTime is the inverse of putTime.
func readTime(b []byte) time.Time {
	fraction := uint64(binary.BigEndian.Uint32(b[4:]))
	return time.Unix(int64(binary.BigEndian.Uint32(b))-2208988800,
		int64(fraction*uint64(time.Second)>>32))
}

// startServer starts a server, which is to end without an error when the test does, and returns a
// client's socket.
func startServer(t *testing.T) net.Conn {
	t.Helper()
	host, client := stacktest.Pair(t)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- serve(ctx, host, &responder{stratum: 1, source: "PPS", now: time.Now})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	c, err := client.Dial("udp", "192.0.2.1:123")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestClient asks as an NTP client does, and computes the offset of RFC 5905 section 8: the server
// has the same clock, so the offset is at most half of the time that query and answer took.
func TestClient(t *testing.T) {
	c := startServer(t)
	query, answer := make([]byte, length), make([]byte, 100)
	query[0], query[atPoll] = 4<<3|3, 6
	n := 0
	var sent, got time.Time
	for end := time.Now().Add(time.Minute); n == 0; { // until the server listens
		sent = time.Now()
		putTime(query[atTransmit:], sent)
		if _, err := c.Write(query); err == nil {
			c.SetReadDeadline(time.Now().Add(time.Second))
			n, _ = c.Read(answer) // an error, until the server listens
			got = time.Now()
		}
		if time.Now().After(end) {
			t.Fatal("no answer")
		}
	}
	if n != length || answer[0] != 4<<3|4 || answer[atStratum] != 1 || answer[atPoll] != 6 ||
		string(answer[atRefID:atReference]) != "PPS\x00" ||
		!bytes.Equal(answer[atOrigin:atReceive], query[atTransmit:]) {
		t.Errorf("answered %x", answer[:n])
	}
	t2, t3 := readTime(answer[atReceive:]), readTime(answer[atTransmit:])
	offset, delay := (t2.Sub(sent)+t3.Sub(got))/2, got.Sub(sent)-t3.Sub(t2)
	t.Logf("offset %v, delay %v", offset, delay)
	const rounding = time.Microsecond
	if offset.Abs() > delay/2+rounding || t3.Before(t2) {
		t.Errorf("the offset is %v, the delay %v", offset, delay)
	}
}

// TestInterleaved asks a second time in interleaved mode: the answer says when the one before left,
// which was after it had been asked for and before it came.
func TestInterleaved(t *testing.T) {
	c := startServer(t)
	var before [length]byte
	var sent, got time.Time
	end := time.Now().Add(time.Minute)
	for n := uint64(1); ; n++ { // until the server listens, and has noted when an answer left
		query, answer := make([]byte, length), make([]byte, 100)
		query[0] = 4<<3 | 3
		copy(query[atOrigin:], before[atReceive:atTransmit])
		binary.BigEndian.PutUint64(query[atReceive:], n)
		binary.BigEndian.PutUint64(query[atTransmit:], ^n)
		asked := time.Now()
		c.Write(query) // an error, until the server listens
		c.SetReadDeadline(time.Now().Add(time.Second))
		if size, err := c.Read(answer); err == nil && size == length {
			if bytes.Equal(answer[atOrigin:atReceive], query[atReceive:atTransmit]) {
				left := readTime(answer[atTransmit:])
				const rounding = time.Microsecond
				if left.Before(sent.Add(-rounding)) || left.After(got.Add(rounding)) {
					t.Errorf("left at %v, was asked for at %v and came at %v", left, sent, got)
				}
				break
			}
			before, sent, got = [length]byte(answer), asked, time.Now()
		}
		if time.Now().After(end) {
			t.Fatal("no answer in interleaved mode")
		}
	}
}

// TestHistory: the oldest answers are forgotten.
func TestHistory(t *testing.T) {
	var h history
	key := func(i int) (k [8]byte) {
		binary.BigEndian.PutUint32(k[:], uint32(i+1))
		return k
	}
	for i := range remembered + 10 {
		h.note(key(i), time.Unix(int64(i), 0))
	}
	_, old := h.find(key(9))
	at, ok := h.find(key(10))
	if old || !ok || at.Unix() != 10 || len(h.left) != remembered {
		t.Errorf("the oldest is there: %v; the next %v, %v; %d in all", old, ok, at, len(h.left))
	}
}

// TestAnswer: the receive timestamp is the time given, the NIC's; what is no query gets nothing.
func TestAnswer(t *testing.T) {
	now := time.Date(2026, 11, 27, 23, 0, 0, 250_000_000, time.UTC)
	r := &responder{stratum: 2, source: "GPS", now: func() time.Time { return now }}
	query := make([]byte, length+20) // with an extension, which is not answered
	query[0] = 3<<3 | 3
	came := now.Add(-time.Millisecond)
	answer := r.answer(query, came, nil)
	if len(answer) != length || answer[0] != 3<<3|4 || answer[atTransmit+4] != 0x40 {
		t.Fatalf("answered %x", answer)
	}
	if got := readTime(answer[atReceive:]); got.Sub(came).Abs() > time.Nanosecond {
		t.Errorf("received at %v, want %v", got, came)
	}
	if got := readTime(answer[atReference:]); got.After(now) || now.Sub(got) > 2*sinceReference {
		t.Errorf("set at %v", got)
	}
	for _, first := range []byte{0, 4<<3 | 4, 4<<3 | 1, 5<<3 | 3, 7} {
		query[0] = first
		if a := r.answer(query, came, nil); a != nil {
			t.Errorf("%#x is answered by %x", first, a)
		}
	}
	query[0] = 4<<3 | 3
	if a := r.answer(query[:length-1], came, nil); a != nil {
		t.Errorf("a short one is answered by %x", a)
	}
}
