package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// captured is the frames of a capture that runs until the function is called.
func captured(t *testing.T, e *Endpoint, o capture.Options) (frames func() [][]byte) {
	t.Helper()
	blocks := capturedBlocks(t, e, o)
	return func() (all [][]byte) {
		for _, b := range blocks() {
			all = append(all, b[28:][:binary.LittleEndian.Uint32(b[20:])])
		}
		return all
	}
}

// capturedBlocks is captured for the enhanced packet blocks of the file.
func capturedBlocks(t *testing.T, e *Endpoint, o capture.Options) (blocks func() [][]byte) {
	t.Helper()
	tap, err := capture.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- tap.WriteTo(context.Background(), &file, capture.About{}, 0) }()
	e.AddTap(tap)
	return func() (all [][]byte) {
		e.RemoveTap(tap)
		tap.Close()
		if err := <-done; err != nil || tap.Counts().Lost != 0 {
			t.Fatalf("%v, %+v", err, tap.Counts())
		}
		for b := file.Bytes(); len(b) > 0; b = b[binary.LittleEndian.Uint32(b[4:]):] {
			if binary.LittleEndian.Uint32(b) == 6 { // enhanced packet block
				all = append(all, b)
			}
		}
		return all
	}
}

// TestCapture captures a transfer at both ends. What one end has sent, cut as the NIC cuts it, is
// what the other has received, byte for byte; and there is nothing else.
func TestCapture(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup setup
	}{
		{"rings", setup{}},
		{"queues, striding", setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2,
			Rings: dv.Rings{Striding: true}}}}},
		{"VLAN", setup{dv: dv.Config{NIC: dv.NIC{VLAN: 100}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.setup.dv.Rings.DelayDrop = true
			server, client := pair(t, tc.setup)
			received := captured(t, server.ep, capture.Options{Direction: capture.In,
				Filter: "tcp", Buffer: 64 << 20})
			sent := captured(t, client.ep, capture.Options{Direction: capture.Out,
				Filter: "tcp", Wire: true, Buffer: 64 << 20})
			data := make([]byte, 1<<20)
			rand.NewChaCha8([32]byte{1}).Read(data)
			transfer(t, server, client, data)
			out, in := received(), sent()
			both := min(len(in), len(out)) // the last ACK may be on its way
			if max(len(in), len(out))-both > 2 {
				t.Fatalf("%d frames sent, %d received", len(in), len(out))
			}
			stream := map[uint32][]byte{}
			for i := range both {
				if !bytes.Equal(in[i], out[i]) {
					t.Fatalf("frame %d: sent\n% x\nreceived\n% x", i, in[i][:60], out[i][:60])
				}
				at := bytes.Index(in[i], []byte{8, 0, 0x45}) + 2
				tcp := in[i][at+20:]
				stream[binary.BigEndian.Uint32(tcp[4:])] = tcp[tcp[12]>>4*4:]
			}
			if !bytes.Equal(data, assembled(stream)) {
				t.Error("the segments do not add up to what was sent")
			}
		})
	}
}

// assembled joins segments by their sequence numbers.
func assembled(segments map[uint32][]byte) (all []byte) {
	next, first := uint32(0), true
	for seq, b := range segments {
		if len(b) > 0 && (first || int32(seq-next) < 0) {
			next, first = seq, false
		}
	}
	for len(segments[next]) > 0 {
		all = append(all, segments[next]...)
		next += uint32(len(segments[next]))
	}
	return all
}

func transfer(t *testing.T, server, client *host, data []byte) {
	t.Helper()
	ln := server.listen(t, server.v4, 80)
	got := make(chan []byte, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			got <- nil
			return
		}
		b, _ := io.ReadAll(conn)
		conn.Close()
		got <- b
	}()
	conn := client.dial(t, server.v4, 80)
	if _, err := conn.Write(data); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if !bytes.Equal(<-got, data) {
		t.Fatal("the transfer itself is wrong")
	}
}

// TestCaptureNICTime: received frames have the NIC's time, as the host's clock would tell it.
func TestCaptureNICTime(t *testing.T) {
	server, client := pair(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
	began := time.Now()
	host := capturedBlocks(t, server.ep, capture.Options{Direction: capture.In})
	nic := capturedBlocks(t, server.ep, capture.Options{Direction: capture.In, NICTime: true})
	transfer(t, server, client, make([]byte, 1<<20))
	byNIC, byHost, differ := nic(), host(), 0
	for i := range min(len(byNIC), len(byHost)) {
		at, other := timeOf(byNIC[i]), timeOf(byHost[i])
		if at.Before(began.Add(-time.Second)) || at.After(time.Now()) {
			t.Fatalf("frame %d: %v, by the host's clock %v", i, at, other)
		}
		if !at.Equal(other) {
			differ++
		}
	}
	if differ == 0 {
		t.Error("all times are the host's")
	}
}

// TestNICTimeAdjusts: a frame that its worker saw late makes the NIC's clock late only until the
// next frame that it sees in time; no frame comes later than it was seen.
func TestNICTimeAdjusts(t *testing.T) {
	server, _ := pair(t, setup{})
	var n nicTime
	if n.clock, n.known = server.dev.Clock(); !n.known {
		t.Fatal("the device has no clock")
	}
	start := time.Unix(1e9, 0)
	n.clock.Set(0, start)
	const ticks = 1 << 30
	took := n.clock.Time(ticks).Sub(start).Seconds()
	second := uint64(ticks / took)
	came := func(ms uint64) uint64 { return second*10 + second*ms/1000 }
	n.clock.Set(came(0), start.Add(449*time.Millisecond)) // seen 449 ms late
	n.set = start
	for _, c := range []struct {
		name        string
		at, seen    uint64 // ms after start
		least, most time.Duration
	}{
		{"seen late again", 100, 549, 549 * time.Millisecond, 549 * time.Millisecond},
		{"seen 2 ms late", 200, 202, 202 * time.Millisecond, 202 * time.Millisecond},
		{"seen at once", 300, 300, 300 * time.Millisecond, 300 * time.Millisecond},
		{"seen late, a second after", 1500, 1900, 1500 * time.Millisecond, 1501 * time.Millisecond},
		{"at once, another second after", 2600, 2600, 2599 * time.Millisecond,
			2600 * time.Millisecond},
	} {
		n.adjust(came(c.at), start.Add(time.Duration(c.seen)*time.Millisecond))
		got := n.clock.Time(came(c.at)).Sub(start)
		if got < c.least-time.Microsecond || got > c.most+time.Microsecond {
			t.Errorf("%s: the frame came after %v, want %v to %v", c.name, got, c.least, c.most)
		}
	}
}

// timeOf is the time of an enhanced packet block.
func timeOf(b []byte) time.Time {
	n := uint64(binary.LittleEndian.Uint32(b[12:]))<<32 | uint64(binary.LittleEndian.Uint32(b[16:]))
	return time.Unix(0, int64(n))
}

// TestTaps adds and removes taps under traffic, twice each, and while no one reads.
func TestTaps(t *testing.T) {
	server, client := pair(t, setup{})
	var taps []*capture.Tap
	for range 3 {
		tap, err := capture.New(capture.Options{Buffer: capture.MinBuffer})
		if err != nil {
			t.Fatal(err)
		}
		server.ep.AddTap(tap)
		taps = append(taps, tap)
	}
	transfer(t, server, client, make([]byte, 3<<20))
	for _, tap := range taps {
		if c := tap.Counts(); c.Lost == 0 || c.Lost >= c.Accepted {
			t.Errorf("%+v: 3 MiB do not fit, some do", c)
		}
		server.ep.RemoveTap(tap)
		server.ep.RemoveTap(tap)
		tap.Close()
	}
	if server.ep.taps.Load() != nil {
		t.Error("there are still taps")
	}
}
