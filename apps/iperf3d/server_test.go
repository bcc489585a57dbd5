package iperf3d

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// serveLoopback runs a server on the kernel's loopback and returns its port.
func serveLoopback(t *testing.T) (*Server, int) {
	t.Helper()
	before := runtime.NumGoroutine()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	pc, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{})
	served := make(chan error, 2)
	go func() { served <- s.Serve(ln) }()
	go func() { served <- s.ServeUDP(pc) }()
	for tracked := 0; tracked < 2; runtime.Gosched() {
		s.mu.Lock()
		tracked = len(s.listeners)
		s.mu.Unlock()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		for range 2 {
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
		for deadline := time.Now().Add(
			5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
			}
		}
	})
	return s, port
}

// report is the output of iperf3 -J, as far as the tests read it.
type report struct {
	Error string `json:"error"`
	End   struct {
		Streams     []struct{} `json:"streams"`
		SumSent     sum        `json:"sum_sent"`
		SumReceived sum        `json:"sum_received"`
		Sum         sum        `json:"sum"`
		BidirSent   sum        `json:"sum_sent_bidir_reverse"`
	} `json:"end"`
}

type sum struct {
	Bytes       float64 `json:"bytes"`
	Packets     float64 `json:"packets"`
	LostPercent float64 `json:"lost_percent"`
}

// iperf3 runs the real client for a short test.
func iperf3(t *testing.T, port int, args ...string) report {
	t.Helper()
	if !slices.Contains(args, "-n") {
		args = append(args, "-t", "1")
	}
	args = append([]string{"-c", "127.0.0.1", "-p", strconv.Itoa(port), "-J"}, args...)
	out, err := exec.Command("iperf3", args...).Output()
	var r report
	if jerr := json.Unmarshal(out, &r); jerr != nil {
		t.Fatalf("iperf3 %s: %v, %v\n%s", strings.Join(args, " "), err, jerr, out)
	}
	if err != nil || r.Error != "" {
		t.Fatalf("iperf3 %s: %v: %s", strings.Join(args, " "), err, r.Error)
	}
	return r
}

func TestStockClient(t *testing.T) {
	need.Long(t, "ten tests of iperf3 of 1 s each")
	need.Tool(t, "iperf3")
	_, port := serveLoopback(t)
	tests := []struct {
		name    string
		args    []string
		streams int
		check   func(r report) bool
	}{
		{"TCP up", nil, 1, func(r report) bool {
			return r.End.SumReceived.Bytes > 1e6 &&
				r.End.SumSent.Bytes > 1e6
		}},
		{"TCP down", []string{"-R"}, 1,
			func(r report) bool { return r.End.SumReceived.Bytes > 1e6 }},
		{"four streams", []string{"-P", "4"}, 4,
			func(r report) bool { return r.End.SumReceived.Bytes > 1e6 }},
		{"both ways", []string{"--bidir"}, 2,
			func(r report) bool {
				return r.End.SumReceived.Bytes > 1e6 &&
					r.End.BidirSent.Bytes > 1e6
			}},
		{"a number of bytes", []string{"-n", "5M"}, 1,
			func(r report) bool { return r.End.SumReceived.Bytes >= 5<<20 }},
		{"omitted time", []string{"-O", "1"}, 1,
			func(r report) bool { return r.End.SumReceived.Bytes > 1e6 }},
		{"paced down", []string{"-R", "-b", "8M"}, 1,
			func(r report) bool {
				return r.End.SumReceived.Bytes > 1e5 &&
					r.End.SumReceived.Bytes < 3e6
			}},
		{"UDP up", []string{"-u", "-b", "10M"}, 1,
			func(r report) bool { return r.End.Sum.Packets > 20 && r.End.Sum.LostPercent < 50 }},
		{"UDP down", []string{"-u", "-R", "-b", "10M"}, 1,
			func(r report) bool { return r.End.Sum.Packets > 20 && r.End.Sum.LostPercent < 50 }},
		{"UDP, two streams, wide counters", []string{"-u", "-P", "2", "-b", "5M",
			"--udp-counters-64bit"}, 2, func(r report) bool { return r.End.Sum.Packets > 20 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := iperf3(t, port, tt.args...)
			if len(r.End.Streams) != tt.streams {
				t.Errorf("%d streams, want %d", len(r.End.Streams), tt.streams)
			}
			if !tt.check(r) {
				t.Errorf("unexpected result %+v", r.End)
			}
		})
	}
}

// dial opens a connection of a test named by a letter.
func dial(t *testing.T, port int, letter byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	k := cookie{letter}
	if _, err := c.Write(k[:]); err != nil {
		t.Fatal(err)
	}
	return c
}

func wantState(t *testing.T, c net.Conn, want state) {
	t.Helper()
	if got, err := readState(c); err != nil || got != want {
		t.Fatalf("state %d, %v; want %d", got, err, want)
	}
}

func TestBusyServerSaysSo(t *testing.T) {
	_, port := serveLoopback(t)
	first := dial(t, port, 'a')
	wantState(t, first, paramExchange)
	if err := writeJSON(first,
		json.RawMessage(`{"tcp":true,"time":60,"reverse":true}`)); err != nil {
		t.Fatal(err)
	}
	wantState(t, first, createStreams)
	data := dial(t, port, 'a')
	wantState(t, first, testStart)
	wantState(t, first, testRunning)
	data.SetDeadline(time.Now().Add(time.Minute))
	go io.Copy(io.Discard, data)
	wantState(t, dial(t, port, 'b'), accessDenied)
	first.Close()
	deadline := time.Now().Add(10 * time.Second)
	for { // the next test can begin when the first client has closed
		c := dial(t, port, 'c')
		if s, err := readState(c); err == nil && s == paramExchange {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the server stays busy")
		}
	}
}

func TestRefusedParameters(t *testing.T) {
	tests := []struct{ name, json string }{
		{"no JSON", `{`},
		{"SCTP", `{"sctp":true}`},
		{"too many streams", `{"tcp":true,"parallel":100000}`},
		{"negative streams", `{"tcp":true,"parallel":-1}`},
		{"huge blocks", `{"tcp":true,"len":1000000000}`},
		{"endless", `{"tcp":true,"time":2000000000}`},
		{"endless in nanoseconds", `{"tcp":true,"time":9223372037}`},
		{"endless in all", `{"tcp":true,"time":86400,"omit":1}`},
		{"a sum beyond integers", `{"tcp":true,"time":86400,"omit":9223372036854775807}`},
		{"beyond integers", `{"tcp":true,"time":9223372036854775808}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, port := serveLoopback(t)
			c := dial(t, port, 'a')
			wantState(t, c, paramExchange)
			c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(tt.json))), tt.json...))
			wantState(t, c, serverError)
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the connection stays open: %v", err)
			}
		})
	}
}

func TestHugeMessageIsNotRead(t *testing.T) {
	_, port := serveLoopback(t)
	c := dial(t, port, 'a')
	wantState(t, c, paramExchange)
	c.Write([]byte{0xff, 0xff, 0xff, 0xff})
	wantState(t, c, serverError)
}

func TestShutdownTellsTheClient(t *testing.T) {
	s, port := serveLoopback(t)
	c := dial(t, port, 'a')
	wantState(t, c, paramExchange)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantState(t, c, serverTerminate)
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		t.Error("the port is still open")
	}
}

func TestLossAccounting(t *testing.T) {
	tests := []struct {
		name             string
		numbers          []int64
		packets, errors_ int64
		late             int64
	}{
		{"in order", []int64{1, 2, 3}, 3, 0, 0},
		{"a gap", []int64{1, 2, 5}, 5, 2, 0},
		{"a gap filled late", []int64{1, 3, 2}, 3, 0, 1},
		{"a duplicate", []int64{1, 2, 2}, 2, 0, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &stream{}
			for _, n := range tt.numbers {
				s.accountNumber(n)
			}
			if s.packets.Load() != tt.packets || s.errors.Load() != tt.errors_ ||
				s.late.Load() != tt.late {
				t.Errorf("%d packets, %d lost, %d late", s.packets.Load(),
					s.errors.Load(), s.late.Load())
			}
		})
	}
}
