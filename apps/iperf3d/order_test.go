package iperf3d

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// TestStreamsInOrderOfComing: of a test both ways the first connection carries the client's bytes
// and the second ours, whichever cookie is read first. Then the client ends the test without
// reading its results, and another client is admitted at once.
func TestStreamsInOrderOfComing(t *testing.T) {
	_, port := serveLoopback(t)
	ctl := dial(t, port, 'a')
	wantState(t, ctl, paramExchange)
	if err := writeJSON(ctl,
		json.RawMessage(
			`{"tcp":true,"time":10,"parallel":1,"bidirectional":true,"len":131072}`)); err != nil {
		t.Fatal(err)
	}
	wantState(t, ctl, createStreams)
	var data [2]net.Conn
	for i := range data {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		data[i] = c
	}
	for _, c := range []net.Conn{data[1], data[0]} {
		k := cookie{'a'}
		c.Write(k[:])
	}
	wantState(t, ctl, testStart)
	wantState(t, ctl, testRunning)
	if _, err := io.ReadFull(data[1], make([]byte, 1<<20)); err != nil {
		t.Errorf("the second connection: %v", err)
	}
	if err := writeState(ctl, testEnd); err != nil {
		t.Fatal(err)
	}
	wantState(t, ctl, exchangeResults)
	if _, err := io.Copy(io.Discard, data[1]); err != nil {
		t.Errorf("streams have no end before results are exchanged: %v", err)
	}
	next := make(chan state, 1)
	other := dial(t, port, 'b')
	go func() { st, _ := readState(other); next <- st }()
	if err := writeJSON(ctl, json.RawMessage(`{}`)); err != nil {
		t.Fatal(err)
	}
	var results json.RawMessage
	if err := readJSON(ctl, &results); err != nil {
		t.Fatal(err)
	}
	wantState(t, ctl, displayResults)
	ctl.Close()
	if st := <-next; st != paramExchange {
		t.Errorf("the next client hears %d, want %d", st, paramExchange)
	}
}

// TestCollectSorts: several goroutines read cookies, so that arrivals may be out of order.
func TestCollectSorts(t *testing.T) {
	s := newSession(New(Config{}), nil, cookie{})
	s.params.Parallel, s.params.Bidirectional = 1, 1
	for _, at := range []uint64{9, 7} {
		s.offerArrival(arrival{at: at,
			stream: func(*params) *stream {
				st := &stream{}
				st.bytes.Store(int64(at))
				return st
			}})
	}
	if err := s.collectStreams(); err != nil {
		t.Fatal(err)
	}
	first, second := s.streams[0], s.streams[1]
	if first.bytes.Load() != 7 || first.sends || second.bytes.Load() != 9 || !second.sends {
		t.Errorf("number %d sends: %v, number %d sends: %v", first.bytes.Load(), first.sends,
			second.bytes.Load(), second.sends)
	}
}
