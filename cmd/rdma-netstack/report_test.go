package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/diagnose"
)

// complaint is a problem of a server that report finds.
type complaint struct {
	name     string
	plan     plan
	before   func(w *sickWorld) // the first look
	between  func(w *sickWorld) // the looks
	evidence string
}

func complaints() []complaint {
	nothing := func(*sickWorld) {}
	return []complaint{
		{"ring-too-small", plan{nic: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}}}, nothing, fullRing,
			"the ring of queue 0 holds 64"},
		{"polling-idle", plan{uplink: stack.UplinkOptions{RxMode: stack.RxPolling}}, nothing,
			nothing, "1 workers never slept"},
		{"client-window-full", plan{clientMTU: 1500}, fillWindow, nothing,
			"1 of 1 connections wait for room at the client"},
		{"listener-backlog", plan{clientMTU: 1500, tcp: stack.TCPOptions{Backlog: 2}}, nothing,
			fillBacklog, "attempts to connect were dropped"},
		{"receive-buffers-full", plan{clientMTU: 1500}, nothing, smallBuffer,
			"for the socket 192.0.2.10:53"},
		{"retransmits-loss", plan{faults: wire.FaultConfig{Drop: 0.03, Seed: 1}, clientMTU: 1500},
			nothing, lossyWire, "as the peer told that they are missing"},
		{"small-mtu", plan{nic: dv.NIC{MTU: 1500}, portMTU: 9000}, nothing, nothing,
			"the MTU is 1500, that of the port 9000"},
		{"memory-pressure", plan{clientMTU: 1500, tcp: stack.TCPOptions{MaxMemory: 256 << 10}},
			nothing, fillMemory, "of 262144 bytes; two thirds were reached"},
		{"gc-share", plan{}, nothing, makeGarbage, " went to garbage collection"},
		{"numa-far", plan{}, farFromCard, nothing, "those at the card are 4096-4103"},
		{"pause-frames", plan{clientMTU: 1500}, cardOfServer, pausePort,
			"20 pause frames received, 0 sent"},
		{"packet-sockets", plan{kernel: behindVeth}, cardBeside, nothing,
			"frames go through packet sockets of veth0, which has the device mlx5_0"},
		{"software-checksums", plan{kernel: behindVeth,
			tcp: stack.TCPOptions{ReceiveBuffer: stack.BufferRange{Default: 64 << 10,
				Max: 64 << 10}}}, nothing, leaveSums, "received frames"},
		{"no-tso", plan{caps: withoutLSO()}, sendInBulk, awaitBulk,
			"none of them left to the NIC to segment"},
		{"send-buffer-full", plan{clientMTU: 1500, faults: wire.FaultConfig{
			Delay: 100 * time.Millisecond}}, fillSendBuffer, awaitFullSendBuffer,
			"1 of 1 connections have a send buffer's worth under way"},
		{"retransmits-timeout", plan{clientMTU: 1500, cable: cuttable}, nothing, losePath,
			"as a timer expired"},
		{"retransmits-reordering", plan{kernel: behindTAP, cable: lateSegments}, nothing,
			sendLate, "though the peer had them already"},
		{"one-hot-queue", plan{nic: twoQueues(), uplink: stack.UplinkOptions{
			Spread: stack.SpreadAll}, filter: manyRules()}, floodOneFlow, awaitFlood,
			"with 1e+02 % of the packets"},
		{"flows-not-spread", plan{nic: twoQueues(), filter: manyRules(), processors: 2},
			floodOneFlow, awaitFlood,
			"1 of 2 queues get flows"},
		{"capture-left-on", plan{}, forgetCapture, nothing, "1 captures run"},
		{"debug-endpoints", plan{debug: []string{"/-/status"}}, nothing, nothing, "/-/status"},
	}
}

// fillWindow has a client ask for data that it does not read.
func fillWindow(w *sickWorld) {
	ln, err := w.server.Listen("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := w.client.Dial("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	accepted, err := ln.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { accepted.Close() })
	go io.Copy(accepted, zeros{}) // until the client is closed
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		for _, s := range w.server.Sockets() {
			if t := s.TCP; t != nil && t.SndWnd < t.MSS && t.Unacked == 0 && s.SendQ > 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the window is not full: %+v", w.server.Sockets())
		}
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// fillBacklog has clients connect that nobody accepts.
func fillBacklog(w *sickWorld) {
	ln, err := w.server.Listen("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	for range 40 {
		go func() {
			if conn, err := w.client.DialContext(ctx, "tcp", "192.0.2.10:80"); err == nil {
				conn.Close()
			}
		}()
	}
	for deadline := time.Now().Add(time.Minute); w.server.Stats().TCPListenDrops < 10; {
		if time.Now().After(deadline) {
			w.t.Fatalf("%d connections are dropped", w.server.Stats().TCPListenDrops)
		}
		time.Sleep(time.Millisecond)
	}
}

// fillMemory makes clients send what the server does not read.
func fillMemory(w *sickWorld) {
	ln, err := w.server.Listen("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	for range 8 {
		conn, err := w.client.Dial("tcp", "192.0.2.10:80")
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { conn.Close() })
		accepted, err := ln.Accept()
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { accepted.Close() })
		go io.Copy(conn, zeros{}) // until it is closed
	}
	w.await("memory_pressures", 1)
}

// makeGarbage makes the process collect garbage most of the time, for a second of a processor's at
// least.
func makeGarbage(w *sickWorld) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	type node struct{ next *node }
	var kept *node
	for range 1 << 20 {
		kept = &node{kept}
	}
	before := admin.ReadFacts(w.server)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		for from := time.Now(); time.Since(from) < 2*time.Second; {
			for size := range 1000 {
				runtime.KeepAlive(make([]byte, size)) // on the heap, as the size is not known
			}
		}
		runtime.GC() // the runtime counts when a collection ends
		// Other processes may leave this one little: go on until it was busy for a third.
		now := admin.ReadFacts(w.server)
		busy, gc := now.BusySeconds-before.BusySeconds, now.GCSeconds-before.GCSeconds
		if busy > max(1, now.Time.Sub(before.Time).Seconds()/3) && gc > busy/4 {
			break
		}
	}
	runtime.KeepAlive(kept)
}

// forgetCapture starts a capture, which runs until the test ends.
func forgetCapture(w *sickWorld) {
	file := filepath.Join(w.t.TempDir(), "frames.pcapng")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	w.t.Cleanup(func() { cancel(); <-ended })
	server, err := (&lookFlags{pid: os.Getpid()}).server(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := server.Open(ctx, "/capture") // which answers once the capture runs
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(ended)
		defer answer.Close()
		writeTo(file, nil, answer)
	}()
}

// TestReport plants a problem of each kind into a server. The command finds each, names it first,
// and says what was seen.
func TestReport(t *testing.T) {
	left := map[string]bool{}
	for _, k := range diagnose.Kinds() {
		left[k.Name] = true
	}
	for _, c := range complaints() {
		delete(left, c.name)
		t.Run(c.name, func(t *testing.T) {
			w := newSickWorld(t, c.plan)
			c.before(w)
			f := reportFlags{lookFlags: lookFlags{pid: os.Getpid()}, machine: w.around}
			j, err := f.judge(t.Context(), func(context.Context) { c.between(w) })
			if err != nil {
				t.Fatal(err)
			}
			if len(j.Findings) == 0 || j.Findings[0].Name != c.name ||
				!strings.Contains(j.Findings[0].Evidence, c.evidence) {
				t.Errorf("want %s, %s first: %+v", c.name, c.evidence, j)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("not planted: %v", left)
	}
}

// TestReportPrints runs the command on a server with a problem, and on one without that exchanges
// data with a client.
func TestReportPrints(t *testing.T) {
	pid := []string{"--pid", number(os.Getpid()), "--for", "10ms"}
	newSickWorld(t, plan{debug: []string{"/-/status"}, clientMTU: 1500})
	stdout, stderr, code := look(append([]string{"report"}, pid...)...)
	if want := ": 1 findings in "; code != exitFailed || stderr != "" ||
		!strings.Contains(stdout, want) || !strings.Contains(stdout, "\n\ndebug-endpoints (cost "+
		"2 of 100)\n  evidence  served to clients: /-/status\n  cause     ") {
		t.Errorf("code %d, %q\n%s", code, stderr, stdout)
	}
	stdout, stderr, code = look(append([]string{"report", "--json"}, pid...)...)
	var j judged
	if err := json.Unmarshal([]byte(stdout), &j); err != nil || code != exitFailed ||
		stderr != "" || len(j.Findings) != 1 || j.Findings[0].Cure != "--debug-endpoints=false" ||
		j.PID != os.Getpid() || j.Seconds <= 0 {
		t.Errorf("code %d, %q, %v: %+v", code, stderr, err, j)
	}
}

// TestReportSound looks at a server whose client asks for an answer at a time.
func TestReportSound(t *testing.T) {
	w := newSickWorld(t, plan{clientMTU: 1500})
	f := reportFlags{lookFlags: lookFlags{pid: os.Getpid()}}
	j, err := f.judge(t.Context(), func(context.Context) { askOften(w) })
	if err != nil || len(j.Findings) > 0 {
		t.Errorf("%v: %+v", err, j)
	}
	stdout, stderr, code := look("report", "--for", "10ms", "--pid", number(os.Getpid()))
	if code != exitDone || stderr != "" || !strings.Contains(stdout, ": nothing is wrong, as far "+
		"as ") {
		t.Errorf("code %d, %q\n%s", code, stderr, stdout)
	}
	for _, wrong := range []string{"0s", "11m", "-1s"} {
		if _, stderr, code := look("report", "--for", wrong); code != exitUsage ||
			!strings.Contains(stderr, "want a time up to 10m") {
			t.Errorf("--for %s: code %d, %q", wrong, code, stderr)
		}
	}
}

// askOften makes a client ask for 500 answers of 20 KiB, one after the other. Where the client gets
// no processor until a probe is due, the last segment of an answer goes twice, up to 33 times
// beside other load: the client reports each, and it is no loss.
func askOften(w *sickWorld) {
	ln, err := w.server.Listen("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	const size = 20 << 10
	go func() {
		conn, err := ln.Accept()
		for ask, answer := make([]byte, 1), make([]byte, size); err == nil; {
			if _, err = io.ReadFull(conn, ask); err == nil {
				_, err = conn.Write(answer)
			}
		}
	}()
	conn, err := w.client.Dial("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	answer := make([]byte, size)
	for range 500 {
		if _, err := conn.Write([]byte{1}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			w.t.Fatal(err)
		}
	}
}
