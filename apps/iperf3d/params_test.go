package iperf3d

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// TestPacerOfTinyRate: a rate so small that the time of the next write overflows is waited for, and
// not treated as no rate.
func TestPacerOfTinyRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(stop) })
		began := time.Now()
		pace := newPacer(1e-300, clock.Clock{})
		if pace.waitUntilDue(1, stop) || time.Since(began) != time.Hour {
			t.Errorf("sent after %v", time.Since(began))
		}
	})
}

func TestTimes(t *testing.T) {
	for _, tt := range []struct {
		name           string
		p              params
		longest, pause time.Duration
	}{
		{"ten seconds", params{Time: 10, Omit: 2, Len: 1}, 42 * time.Second, 0},
		{"a number of bytes", params{}, maxTime + overtime, 0},
		{"paced", params{Time: 1, Len: 125, Bandwidth: 1000}, 31 * time.Second, time.Second},
		{"paced to a standstill", params{Time: 1, Len: maxBlock, Bandwidth: 1e-300},
			31 * time.Second, maxPause},
	} {
		if l, p := tt.p.timeLimit(), tt.p.writePause(); l != tt.longest || p != tt.pause {
			t.Errorf("%s: %v and %v, want %v and %v", tt.name, l, p, tt.longest, tt.pause)
		}
	}
}

// FuzzParams: a client's parameters are refused or within the limits. The corpus contains those of
// iperf3 3.12.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"tcp":true,"time":9223372037}`))
	f.Add([]byte(`{"udp":true,"bandwidth":1e-300,"len":65507}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		var p params
		framed := append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...)
		if readJSON(bytes.NewReader(framed), &p) != nil || p.normalise() != nil {
			return
		}
		n, sends := p.streamPlan()
		if n < 1 || n > 2*maxStreams || p.Len < 1 || p.Len > maxBlock ||
			p.UDP && p.Len > maxDatagram {
			t.Errorf("%s: %d streams with blocks of %d bytes", message, n, p.Len)
		}
		if l := p.timeLimit(); l < overtime || l > maxTime+overtime {
			t.Errorf("%s: a test of %v", message, l)
		}
		if d := p.writePause(); d < 0 || d > maxPause {
			t.Errorf("%s: pauses of %v", message, d)
		}
		sends(n - 1)
	})
}

// sized counts the sizes of writes to a connection whose packets hold that many bytes.
type sized struct {
	net.Conn
	holds  int
	writes map[int]int
	stop   chan struct{}
}

func (c *sized) WriteSize() int { return c.holds }
func (c *sized) Write(p []byte) (int, error) {
	if c.writes[len(p)]++; c.writes[len(p)] == 3 {
		close(c.stop)
	}
	return len(p), nil
}

// TestBlocksFillPackets sends: what is asked for at a time is cut to whole packets.
func TestBlocksFillPackets(t *testing.T) {
	for _, tt := range []struct{ asked, holds, want int }{{128 << 10, 65320, 2 * 65320},
		{65320, 65320, 65320}, {64 << 10, 65320, 65320}, {1000, 65320, 1000}, {4000, 1448, 2896}} {
		c := &sized{holds: tt.holds, writes: map[int]int{}, stop: make(chan struct{})}
		s := &stream{}
		sendTCP(s, c, &params{Len: tt.asked}, clock.Clock{}, c.stop)
		if len(c.writes) != 1 || c.writes[tt.want] != 3 || s.bytes.Load() != int64(3*tt.want) {
			t.Errorf("%d asked, packets of %d: writes %v, want of %d; %d bytes", tt.asked,
				tt.holds, c.writes, tt.want, s.bytes.Load())
		}
	}
}
