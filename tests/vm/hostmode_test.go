//go:build linux

package vm

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// serveHost starts our web server on the guest's own address and a port.
func (w *world) serveHost(t *testing.T, port int) *server {
	t.Helper()
	s := &server{w, w.start(t, w.hostArgs(port)...)}
	eventually(t, func() string { return "rdma-netstack says: " + w.output(t, s.job) },
		func() bool { return strings.Contains(w.output(t, s.job), "serving HTTP") })
	return s
}

func (w *world) hostArgs(port int) []string {
	return []string{"rdma-netstack", "serve", "http", "--debug-endpoints", "--device", "mlx5_0",
		"--address", "host", "--queues", "2", "--listen", fmt.Sprintf(":%d", port)}
}

// testHostMode has our server on the address of the guest's netdev: clients outside get it from the
// rings, those in the guest from the guest's kernel, which keeps its own server on another port,
// and answers pings.
func testHostMode(t *testing.T, w *world) {
	w.served(t)
	s := w.serveHost(t, 80)
	before := w.nic.Counters()
	for _, to := range []netip.Prefix{netdev4, netdev6} {
		w.pinged(t, to.Addr())
		if err := w.client.Download(w.ctx, url(to, 80), bulk/4); err != nil {
			t.Error(err)
		}
		if err := w.client.Echo(w.ctx, url(to, 80), bulk/8); err != nil {
			t.Error(err)
		}
		if err := w.client.Download(w.ctx, url(to, netdevPort), bulk/8); err != nil {
			t.Errorf("the kernel's own server: %v", err)
		}
		if got, want := w.must(t, rig.Request{Op: "fetch", Argv: []string{fmt.Sprintf(
			"%s/-/bytes/%d", url(to, 80), bulk/8)}, Timeout: patience}).Output,
			patternDigest(bulk/8); got != want {
			t.Errorf("the guest fetched %s from itself, want %s", got, want)
		}
	}
	if err := w.client.DownloadConcurrently(w.ctx, url(netdev4, 80), 16, 4, 32<<10); err != nil {
		t.Error(err)
	}
	after := w.nic.Counters()
	if sent, want := after.Slice.TxBytes-before.Slice.TxBytes,
		uint64(bulk/4+bulk/8)*2; sent < want {
		t.Errorf("the rings sent %d bytes, want %d at least", sent, want)
	}
	if got := after.Slice.RxPackets - before.Slice.RxPackets; got < bulk/8/1500*2 {
		t.Errorf("the rings received %d frames: the others went to the kernel", got)
	}
	w.hostProcesses(t)
	w.hostKilled(t, s)
}

// hostProcesses starts a second server: the same port is refused, another is not.
func (w *world) hostProcesses(t *testing.T) {
	t.Helper()
	out, code := w.try(t, w.hostArgs(80)...)
	if code == 0 || !strings.Contains(out, "another process of this host has the port") {
		t.Errorf("a second server on the same port: exit %d\n%s", code, out)
	}
	second := w.serveHost(t, 82)
	for _, port := range []int{80, 82} {
		if err := w.client.Download(w.ctx, url(netdev4, port), bulk/32); err != nil {
			t.Errorf("port %d: %v", port, err)
		}
	}
	second.stop(t)
	w.kernels(t, netdev4.Addr(), 82)
}

// hostKilled kills a server: the kernel answers for its port at once, nothing of it is left, and
// the next has the port.
func (w *world) hostKilled(t *testing.T, s *server) {
	t.Helper()
	if _, err := w.vm.Do(rig.Request{Op: "stop", Job: s.job, Signal: int(unix.SIGKILL),
		Timeout: patience}); err != nil {
		t.Fatal(err)
	}
	w.kernels(t, netdev4.Addr(), 80, 61440)
	w.kernels(t, netdev6.Addr(), 80)
	if left := w.leftovers(t); left != "" {
		t.Errorf("left behind: %s", left)
	}
	next := w.serveHost(t, 80)
	if err := w.client.Download(w.ctx, url(netdev4, 80), bulk/32); err != nil {
		t.Error(err)
	}
	next.stop(t)
	w.kernels(t, netdev4.Addr(), 80)
}
