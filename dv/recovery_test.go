package dv

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// The first resets in a row are not put off, the rest ever longer, and after a success all begins
// anew.
func TestRecoveryPauses(t *testing.T) {
	clock := newFakeClock()
	r := recovery{now: clock.now}
	const ms = time.Millisecond
	want := []time.Duration{0, 0, 0, 1 * ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms,
		64 * ms, 100 * ms, 100 * ms}
	for round := range 2 {
		var got []time.Duration
		for range want {
			if !r.countReset("test") {
				t.Fatal("hopeless at once")
			}
			got = append(got, r.pauseBeforeReset())
			clock.add(r.pauseBeforeReset())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: pauses %v, want %v", round, got, want)
		}
		if r.endResetRow(); r.pauseBeforeReset() != 0 || r.consecutiveResets != 0 {
			t.Fatal("a success changes nothing")
		}
	}
}

// Resets are logged once per second at most, each of them in the count of some line; any caller
// reports the last ones.
func TestResetLog(t *testing.T) {
	t.Run("send", func(t *testing.T) {
		r := newTxRig(t, 64, 128<<10, defaultLimits)
		clock, log := newFakeClock(), new(bytes.Buffer)
		r.q.recovery.now, r.q.log = clock.now, slog.New(slog.NewTextHandler(log, nil))
		p := TxPacket{Bufs: [][]byte{make([]byte, 200)}}
		for range 250 {
			for _, cqe := range []*[64]byte{sent(0), failed(0xd0, 0x04, 1)} {
				r.post(t, &p)
				r.nic.put(cqe)
			}
			r.q.Reclaim()
			clock.add(10 * time.Millisecond)
		}
		for r.q.Check() {
			clock.add(100 * time.Millisecond)
		}
		checkLog(t, log.String(), 1, 100, 100, 49)
	})
	t.Run("receive", func(t *testing.T) {
		r := newRxRig(t, 64, 64)
		clock, log := newFakeClock(), new(bytes.Buffer)
		r.q.recovery.now, r.q.log = clock.now, slog.New(slog.NewTextHandler(log, nil))
		pkts := make([]Packet, 1)
		for range 250 {
			r.receive(1, 60)
			r.q.Release(pkts[:r.q.Poll(pkts)])
			r.nic.put(failed(0xe0, 0x04, r.next))
			r.q.Poll(pkts)
			clock.add(10 * time.Millisecond)
		}
		clock.add(time.Second)
		r.q.Arm() // as the owner does when it was woken
		checkLog(t, log.String(), 1, 100, 100, 49)
		if want := slices.Repeat([]time.Duration{resetLogPause}, 3); !slices.Equal(r.pauses, want) {
			t.Errorf("to be woken after %v, want %v", r.pauses, want)
		}
	})
}

// checkLog wants one line per count of resets.
func checkLog(t *testing.T, log string, counts ...int) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if len(lines) != len(counts) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(counts), log)
	}
	for i, n := range counts {
		if want := fmt.Sprintf(" resets=%d ", n); !strings.Contains(lines[i], want) {
			t.Errorf("line %d has not%q: %s", i, want, lines[i])
		}
	}
}

// A receive queue that fails again and again is reset at a rate that costs little. Its owner,
// which may sleep, is woken for each reset once, and looks at no stale completion meanwhile.
func TestRxPutOff(t *testing.T) {
	r := newRxRig(t, 64, 64)
	clock := newFakeClock()
	r.q.recovery.now = clock.now
	pkts := make([]Packet, 1)
	for range promptResets {
		r.nic.put(failed(0xe0, 0x04, r.next))
		r.q.Poll(pkts)
	}
	r.nic.put(failed(0xe0, 0x04, r.next))
	for range 3 {
		if n := r.q.Poll(pkts); n != 0 || r.starts != promptResets {
			t.Fatalf("%d packets, %d resets", n, r.starts)
		}
	}
	if want := []time.Duration{resetLogPause, firstPause}; !slices.Equal(r.pauses, want) {
		t.Errorf("to be woken after %v, want %v", r.pauses, want)
	}
	clock.add(firstPause)
	r.q.Poll(pkts)
	r.receive(1, 60)
	if n := r.q.Poll(pkts); n != 1 || r.starts != promptResets+1 {
		t.Errorf("%d packets, %d resets", n, r.starts)
	}
}
