package rdma

import (
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// TestOutOfBuffer: of frames that arrive while the ring is not read, those without a buffer are
// counted, and the others are delivered: together as many as were sent.
func TestOutOfBuffer(t *testing.T) {
	const ring, sent = 64, 1000
	_, devs := devices(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: ring}}}})
	ep, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	for range sent / 10 {
		var frames [][]byte
		for range 10 {
			frames = append(frames, arpFrame())
		}
		post(t, devs[1].Tx(0), frames...)
	}
	s := ep.Stats()
	for end := time.Now().Add(alive); s.RxOutOfBuffer < sent-ring && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // no event reports it
		s = ep.Stats()
	}
	ep.Attach(new(sink))
	for end := time.Now().Add(alive); s.RxPackets < ring && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		s = ep.Stats()
	}
	if s.RxPackets != ring || s.RxPackets+s.RxOutOfBuffer != sent {
		t.Errorf("%d frames delivered and %d without a buffer, %d sent", s.RxPackets,
			s.RxOutOfBuffer, sent)
	}
	if n := devs[0].Stats().Rx[0].Stalls; n != 1 {
		t.Errorf("%d stalls", n)
	}
}
