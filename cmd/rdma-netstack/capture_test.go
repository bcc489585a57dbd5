package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestCapture captures from a server of this process, with each way out.
func TestCapture(t *testing.T) {
	tcpdump := need.Tool(t, "tcpdump")
	f := serveFlagsOf(t, "--device", "sim", "--sim-wire", "none", "--address", "192.0.2.10/24")
	s, err := openSlice(t.Context(), f, warningLog(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	defer s.closeAfter(nil)
	ask := make(chan bool) // the server looks for a neighbour until it is closed
	defer close(ask)
	go func() {
		conn, err := s.stack.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 99), Port: 9})
		for err == nil {
			select {
			case <-ask:
				conn.Close()
				return
			default:
				conn.Write([]byte("x"))
			}
		}
	}()
	file := filepath.Join(t.TempDir(), "f.pcapng")
	pid := number(os.Getpid())
	for _, args := range [][]string{
		{"capture", "--pid", pid, "-w", file, "-c", "2", "-Q", "out", "arp", "and", "host",
			"192.0.2.99"},
		{"--extcap-interface", extcapPrefix + pid, "--fifo", file, "--capture",
			"--extcap-capture-filter", "arp and host 192.0.2.99", "--count", "2"},
	} {
		os.Remove(file)
		_, stderr, code := look(args...)
		if code != exitDone || !strings.HasPrefix(stderr, "2 frames captured, 0 lost") {
			t.Fatalf("%v: code %d, %s", args, code, stderr)
		}
		out, err := exec.Command(tcpdump, "-nr", file).Output()
		if n := strings.Count(string(out), "ARP, Request who-has 192.0.2.99"); n != 2 ||
			err != nil {
			t.Errorf("%v: tcpdump %v\n%s", args, err, out)
		}
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"where to? give -w FILE", nil},
		{"which standard output has not", []string{"-w", "-", "-C", "1"}},
		{"give -C MEGABYTES, too", []string{"-w", file, "-W", "2"}},
		{"want nic or host", []string{"-w", file, "--time", "x"}},
		{`"http" is no port`, []string{"-w", file, "port", "http"}},
		{"direction=up: want in, out or inout", []string{"-w", file, "-Q", "up"}},
		{"queue=x: want the number", []string{"-w", file, "--queue", "x"}},
	} {
		_, stderr, code := look(append([]string{"capture", "--pid", pid}, tc.args...)...)
		if code == exitDone || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: code %d, %s", tc.args, code, stderr)
		}
	}
}

// TestExtcap: what Wireshark asks before it captures.
func TestExtcap(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--extcap-interfaces", "--extcap-version=4.0"}, "extcap {version=1.0}", exitDone},
		{[]string{"--extcap-dlts", "--extcap-interface", "rdma-netstack-1"},
			"dlt {number=1}{name=EN10MB}", exitDone},
		{[]string{"--extcap-config", "--extcap-interface", "rdma-netstack-1"}, "{call=--wire}",
			exitDone},
		{[]string{"--extcap-interface", "rdma-netstack-1", "--extcap-capture-filter", "port x"},
			"is no port", exitDone},
		{[]string{"--capture", "--extcap-interface", "eth0", "--fifo", "x"},
			"is not of --extcap-interfaces", exitFailed},
		{[]string{"--extcap-version=4.0"}, "want one of --extcap-interfaces", exitUsage},
	} {
		stdout, stderr, code := look(tc.args...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
			t.Errorf("%v: code %d, %s%s", tc.args, code, stdout, stderr)
		}
	}
}

// TestCaptureFiles cuts a capture into files, as tcpdump names them.
func TestCaptureFiles(t *testing.T) {
	tap, err := capture.New(capture.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b capture.Batch
	for i := range 10 {
		b.Begin([]*capture.Tap{tap}, capture.In, 0)
		b.Add(&capture.Frame{Bufs: [][]byte{bytes.Repeat([]byte{byte(i)}, 300)}})
		b.Commit()
	}
	tap.Close()
	var whole bytes.Buffer
	if err := tap.WriteTo(t.Context(), &whole, capture.About{Name: "net0"}, 0); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		limit int64
		ring  int
		files string
	}{
		{"one file", 0, 0, "f"},
		{"as many as it takes", 1200, 0, "f f1 f2 f3"},
		{"a ring of two", 1200, 2, "f0 f1"},
		{"a ring of eleven", 1200, 11, "f00 f01 f02 f03"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			c := captureFile{name: filepath.Join(dir, "f"), limit: tc.limit, ring: tc.ring}
			n, err := c.copy(bytes.NewReader(whole.Bytes()))
			if err != nil || n.frames != 10 || c.close() != nil || c.close() != nil {
				t.Fatalf("%v, %+v", err, n)
			}
			var names []string
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				names = append(names, e.Name())
				file, _ := os.ReadFile(filepath.Join(dir, e.Name()))
				if !bytes.HasPrefix(file, c.header) ||
					tc.limit > 0 && int64(len(file)) > tc.limit {
					t.Errorf("%s: %d bytes", e.Name(), len(file))
				}
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != tc.files {
				t.Errorf("%s, want %s", got, tc.files)
			}
		})
	}
	for cut := 1; cut < whole.Len(); cut += 97 {
		c := captureFile{name: "-", out: keepOpen{&bytes.Buffer{}}}
		if _, err := c.copy(bytes.NewReader(whole.Bytes()[:cut])); err == nil &&
			!bytes.Contains(whole.Bytes()[:cut], []byte("net0")) {
			t.Errorf("cut off behind %d bytes, and no error", cut)
		}
	}
}
