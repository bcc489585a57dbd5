package simnic

import (
	"encoding/binary"
	"testing"
)

// Completions have time stamps of the format that their queue asks for, as far as the device has
// it.
func TestTimestampFormats(t *testing.T) {
	const passed, khz = 1_500_000_032, 156250 // 1.5 s and 5 ticks
	const ticks, wall = 234375005, 1001<<32 | 500_000_032
	for _, c := range []struct {
		name   string
		have   TimestampCap
		format TimestampFormat
		want   uint64 // 0: refused
	}{
		{"free-running of free-running", StampsFreeRunning, FreeRunning, ticks},
		{"default of free-running", StampsFreeRunning, DefaultStamps, 0},
		{"real time of free-running", StampsFreeRunning, RealTime, 0},
		{"free-running of real time", StampsRealTime, FreeRunning, 0},
		{"default of real time", StampsRealTime, DefaultStamps, wall},
		{"real time of real time", StampsRealTime, RealTime, wall},
		{"free-running of both", StampsBoth, FreeRunning, ticks},
		{"default of both", StampsBoth, DefaultStamps, ticks},
		{"real time of both", StampsBoth, RealTime, wall},
		{"what there is not", StampsBoth, RealTime + 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			caps := DefaultCaps()
			caps.Timestamps, caps.FrequencyKHz = c.have, khz
			now := uint64(passed)
			n := newNIC(t, Config{Caps: caps, Clock: fixedClock(&now)})
			if c.want == 0 {
				wantRefused(t, n, c.format)
				return
			}
			wire := &recorder{}
			if err := n.ConnectWire(wire); err != nil {
				t.Fatal(err)
			}
			cq, m := newCQ(t, n, 4, nil), mem(t, 4096)
			key := newKey(t, n, m, nil)
			rq := newRQ(t, n, cq, 4, 4, func(a *RQAttr) { a.Timestamps = c.format })
			flowTo(t, n, macTwo, newTIR(t, n, TIRAttr{RQ: rq.RQ}))
			rq.post(seg(2048, key.Key(), m.Addr()))
			(&recvRig{wire: wire}).give(frame60)
			sq := newSQ(t, n, cq, 4, func(a *SQAttr) { a.Timestamps = c.format })
			sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), seg(60, key.Key(), m.Addr())))
			sq.doorbell()
			for _, what := range []string{"received", "sent"} {
				if got := binary.BigEndian.Uint64(cq.mustPoll(t)[0x30:]); got != c.want {
					t.Errorf("%s: %#x, want %#x", what, got, c.want)
				}
			}
		})
	}
}

// Real-time stamps are off until they are switched on, which only cards with the option take.
func TestRealTimeClockOption(t *testing.T) {
	for _, c := range Cards() {
		if n := newNIC(t, Config{Card: c.Name}); n.Caps().Timestamps != StampsFreeRunning {
			t.Errorf("%s: stamps %d by default", c.Name, n.Caps().Timestamps)
		}
		n, err := New(Config{Card: c.Name, RealTimeClock: true})
		switch {
		case !c.RealTimeOption && StatusOf(err) != StatusBadParam:
			t.Errorf("%s: %v", c.Name, err)
		case c.RealTimeOption && err != nil:
			t.Errorf("%s: %v", c.Name, err)
		case c.RealTimeOption:
			if n.Caps().Timestamps != StampsBoth {
				t.Errorf("%s: stamps %d, switched on", c.Name, n.Caps().Timestamps)
			}
			n.Close()
		}
	}
}

// wantRefused creates queues with time stamps that the device lacks.
func wantRefused(t *testing.T, n *NIC, f TimestampFormat) {
	t.Helper()
	cq := newCQ(t, n, 4, nil)
	ring, rec := NewMemory(mem(t, 4096)), NewMemory(record(t))
	_, err := n.CreateRQ(RQAttr{CQ: cq.CQ, Ring: ring, LogSize: 4, LogStride: 4, Record: rec,
		Timestamps: f})
	if StatusOf(err) != StatusBadParam {
		t.Errorf("receive queue: %v", err)
	}
	_, err = n.CreateSQ(SQAttr{CQ: cq.CQ, Ring: ring, LogSize: 4, Record: rec, Timestamps: f})
	if StatusOf(err) != StatusBadParam {
		t.Errorf("send queue: %v", err)
	}
}
