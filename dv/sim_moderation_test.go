package dv_test

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// With moderation an event comes for so many frames, not for the first. The
// time limit may come before, so several tries are made.
func TestEventModeration(t *testing.T) {
	for _, frames := range []int{0, 8} {
		s := newSim(t, simnic.Config{}, kernel.Config{})
		q := s.open(t, dv.Config{Tuning: dv.Tuning{
			EventFrames:       uint16(frames),
			EventMicroseconds: 4000,
			NoCompression:     true,
		}}).Rx(0)
		most := 0
		for range 20 {
			told, sent := s.nic.Counters().CQEvents, 0
			for q.Arm(); s.nic.Counters().CQEvents == told && sent < 20; sent++ {
				s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 60))
			}
			most = max(most, sent)
			poll(q)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		if want := max(1, frames); most > want || frames > 1 && most == 1 {
			t.Errorf("EventFrames %d: the event came with frame %d", frames, most)
		}
	}
}

func TestEventModerationRefused(t *testing.T) {
	caps := simnic.DefaultCaps()
	caps.CQModeration = false
	s := newSim(t, simnic.Config{Caps: caps}, kernel.Config{})
	if _, err := dv.Open(t.Context(),
		s.config(dv.Config{Tuning: dv.Tuning{EventFrames: 8,
			EventMicroseconds: 50}})); !errors.Is(err,
		dv.ErrNotSupported) {
		t.Errorf("device without: %v", err)
	}
	if _, err := dv.Open(t.Context(),
		s.config(dv.Config{Tuning: dv.Tuning{EventFrames: 8}})); !errors.Is(err,
		dv.ErrConfig) {
		t.Errorf("no limit in time: %v", err)
	}
}
