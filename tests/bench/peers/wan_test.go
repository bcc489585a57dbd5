package main

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLongCableDelaysAndLoses(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	const frames = 5000
	type arrival struct {
		number uint32
		at     time.Time
	}
	arrived := make(chan arrival, frames)
	go carryLate(fds[1], func(frame []byte) {
		arrived <- arrival{binary.BigEndian.Uint32(frame), time.Now()}
	})
	sent := make([]time.Time, frames)
	for i := range uint32(frames) {
		sent[i] = time.Now()
		if _, err := unix.Write(fds[0], binary.BigEndian.AppendUint32(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	last, lost := uint32(0), 0
	for last < frames-50 { // the very last may be lost
		a := <-arrived
		if a.number < last {
			t.Fatalf("frame %d after frame %d", a.number, last)
		}
		lost += int(a.number - last - min(1, a.number-last))
		last = a.number
		if took := a.at.Sub(sent[a.number]); took < wanDelay {
			t.Fatalf("frame %d took %v", a.number, took)
		}
	}
	unix.Close(fds[0])
	if lost < frames/200 || lost > frames*3/200 {
		t.Errorf("%d of %d frames are lost, want about %v", lost, frames, frames*wanLoss)
	}
}
