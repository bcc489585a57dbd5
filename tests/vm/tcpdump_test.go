//go:build linux

package vm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// libpcapDir is where the guest has a libpcap that can capture on RDMA devices.
const libpcapDir = "/lib/rdma-pcap"

// libpcap adds that libpcap to the guest, if it can be built.
func (p *machineParts) libpcap(t *testing.T) {
	t.Helper()
	lib, err := p.cache.Libpcap(t.Context())
	if p.libpcapErr = err; err != nil {
		t.Log(err)
		return
	}
	p.files = map[string]string{libpcapDir + "/" + rig.LibpcapName: lib,
		"/etc/passwd": "testdata/passwd"} // tcpdump changes to a user of it
}

// testTcpdump captures with Debian's tcpdump on the RDMA device: what comes in for the netdev, and
// what it sends, byte for byte.
func testTcpdump(t *testing.T, w *world) {
	need.That(t, "libpcap", w.libpcapErr)
	job := w.must(t, rig.Request{Op: "start", Env: []string{"LD_LIBRARY_PATH=" + libpcapDir},
		Argv: []string{"tcpdump", "-i", "mlx5_0", "-n", "-l", "-xx", "-s", "0", "-Z", "root"}}).ID
	eventually(t, func() string { return "tcpdump listening: " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), "listening on mlx5_0") })
	sent, received := w.captured(t)
	missing := func() (n int) {
		frames := dumped(w.output(t, job))
		for _, f := range append(sent, received...) {
			if !frames[string(f)] {
				n++
			}
		}
		return n
	}
	eventually(t, func() string {
		return fmt.Sprintf("all frames in the capture: %d of %d to the netdev and %d of it are "+
			"not:\n%s", missing(), len(sent), len(received), w.output(t, job))
	}, func() bool { return missing() == 0 })
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: int(unix.SIGINT),
		Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("tcpdump ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
	if held := w.leftovers(t); held != "" {
		t.Errorf("the kernel holds:\n%s", held)
	}
}

// captured sends frames of several lengths to the netdev, and has the guest ping. It returns both
// the frames sent and the requests received from the guest.
func (w *world) captured(t *testing.T) (sent, received [][]byte) {
	t.Helper()
	var port *lab.Port
	if err := w.outside.Do(func() (err error) {
		port, err = lab.OpenPort("wire0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	mac := w.netdevMAC(t)
	for i, size := range []int{60, 61, 200, 1000, 1499} {
		f := numbered(mac, port.MAC, size, uint32(i)<<16|0xabcd)
		if err := port.Send(f); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, f)
	}
	const pings = 4
	w.run(t, "ping", "-c", fmt.Sprint(pings), "-i", "0.2", "-s", "1001", "-p", "c0ffee", "-w",
		fmt.Sprint(patience.Seconds()), outside4.Addr().String())
	buf := make([]byte, 2048)
	for deadline := time.Now().Add(time.Second); ; {
		f, err := port.Recv(buf, deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(f[6:12], mac) && bytes.Contains(f, []byte("\xc0\xff\xee\xc0\xff\xee")) {
			received = append(received, bytes.Clone(f))
		}
	}
	if len(received) < pings { // one more leaves when an answer takes longer than the next request
		t.Fatalf("%d echo requests of %d came out", len(received), pings)
	}
	return sent, received
}

// hexLine is a line of tcpdump -xx: an offset, and up to 16 bytes.
var hexLine = regexp.MustCompile(`^\t0x([0-9a-f]{4}):  ([0-9a-f ]+)$`)

// dumped is the set of frames in what tcpdump -xx printed.
func dumped(out string) map[string]bool {
	frames := map[string]bool{}
	var frame []byte
	for line := range strings.Lines(out) {
		m := hexLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || m[1] == "0000" {
			frames[string(frame)] = true
			frame = nil
		}
		if m == nil {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
		if err != nil {
			return nil
		}
		frame = append(frame, b...)
	}
	frames[string(frame)] = true
	return frames
}
