package iperf3d

import (
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestPacerGoesByItsClock: 3,600 bytes at 8 bit/s take an hour of the clock.
func TestPacerGoesByItsClock(t *testing.T) {
	virtual := clocktest.New()
	began := virtual.Now()
	pace := newPacer(8, virtual.Clock())
	defer virtual.Run()()
	if !pace.waitUntilDue(3600, nil) || virtual.Now().Sub(began) != time.Hour {
		t.Errorf("sent after %v", virtual.Now().Sub(began))
	}
}

// TestTurnGoesByTheClock: a client that is silent for 2 s of the clock loses its turn to one that
// waits.
func TestTurnGoesByTheClock(t *testing.T) {
	virtual := clocktest.New()
	began := virtual.Now()
	s := New(Config{Clock: virtual.Clock()})
	defer s.Close()
	silent := newSession(s, nil, cookie{'a'})
	s.current = silent
	go func() {
		<-silent.ctx.Done()
		s.mu.Lock()
		s.current = nil
		s.mu.Unlock()
		close(silent.over)
	}()
	defer virtual.Run()()
	next, mine := s.admitConn(nil, cookie{'b'})
	if took := virtual.Now().Sub(began); !mine || next == silent || took < maxIdle ||
		took > maxIdle+2*admitInterval {
		t.Errorf("its turn: %v, after %v", mine, took)
	}
}
