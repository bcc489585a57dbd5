//go:build linux

package vm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Our own binary on /dev/infiniband/uverbs0: servers on the slice, with clients outside, while the
// kernel's netdev uses the same port.

// sliceMAC is the address of the slice.
const sliceMAC = "02:aa:00:00:00:03"

// server is our binary serving in the guest.
type server struct {
	w   *world
	job int
}

// serve starts our binary in the guest and waits until it reports that it serves.
func (w *world) serve(t *testing.T, what string, args ...string) *server {
	t.Helper()
	argv := append([]string{"rdma-netstack", "serve", what, "--device", "mlx5_0", "--mac", sliceMAC,
		"--address", slice4.String(), "--address", slice6.String(), "--queues", "2"}, args...)
	s := &server{w, w.start(t, argv...)}
	eventually(t, func() string { return "rdma-netstack says: " + w.output(t, s.job) },
		func() bool {
			return strings.Contains(w.output(t, s.job), "serving")
		})
	return s
}

// stop tells the server to end. It must exit by itself and log no complaint.
func (s *server) stop(t *testing.T) {
	t.Helper()
	r, err := s.w.vm.Do(rig.Request{Op: "stop", Job: s.job, Signal: 15, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Fatalf("rdma-netstack ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
}

// testHTTP serves HTTP on the slice: ping, small and large bodies, uploads, both IP versions.
func testHTTP(t *testing.T, w *world) { w.servesHTTP(t).stop(t) }

// testInPlace does what testHTTP does, of a server that sends large writes without copying: from
// memory that the guest's kernel has pinned for the NIC to read.
func testInPlace(t *testing.T, w *world) {
	s := w.servesHTTP(t, "--zero-copy")
	if counters := w.run(t, "rdma-netstack", "status", "stats"); !strings.Contains(counters,
		"_in_place: ") {
		t.Errorf("everything was copied:\n%s", counters)
	}
	s.stop(t)
}

func (w *world) servesHTTP(t *testing.T, args ...string) *server {
	t.Helper()
	s := w.serve(t, "http", append([]string{"--debug-endpoints"}, args...)...)
	before := w.nic.Counters()
	for _, to := range []netip.Prefix{slice4, slice6} {
		w.pinged(t, to.Addr())
		if err := w.client.Download(w.ctx, url(to, 80), bulk); err != nil {
			t.Error(err)
		}
		if err := w.client.Echo(w.ctx, url(to, 80), bulk/8); err != nil {
			t.Error(err)
		}
	}
	if err := w.client.DownloadConcurrently(w.ctx, url(slice4, 80), 16, 4, 32<<10); err != nil {
		t.Error(err)
	}
	after := w.nic.Counters()
	if sent := after.Slice.TxBytes - before.Slice.TxBytes; sent < 2*bulk {
		t.Errorf("the slice sent %d bytes for %d: the answers came from somewhere else", sent,
			2*bulk)
	}
	return s
}

// testDNS serves a zone on the slice, over UDP and TCP.
func testDNS(t *testing.T, w *world) {
	s := w.serve(t, "dns", "--zone", "/etc/example.zone")
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []netip.Addr{slice4.Addr(), slice6.Addr()} {
			for kind, want := range map[string]string{"A": slice4.Addr().String(),
				"AAAA": slice6.Addr().String()} {
				got, err := w.client.Lookup(w.ctx, network,
					netip.AddrPortFrom(server, 53), "www.example", kind)
				if err != nil || !slices.Equal(got, []string{want}) {
					t.Errorf("%s www.example at %s over %s: %q, %v", kind,
						server, network, got, err)
				}
			}
		}
	}
	s.stop(t)
}

// testBeside loads the guest kernel's netdev and our slice at the same time, each with its own
// server.
func testBeside(t *testing.T, w *world) {
	s := w.serve(t, "http", "--debug-endpoints")
	ctx, cancel := context.WithTimeout(w.ctx, 2*patience)
	defer cancel()
	var load sync.WaitGroup
	for _, at := range []string{url(slice4, 80), url(slice6, 80), url(netdev4, netdevPort),
		url(netdev6, netdevPort)} {
		load.Go(func() {
			for range 4 {
				if err := w.client.Download(ctx, at, bulk/4); err != nil {
					t.Error(err)
				}
			}
		})
	}
	load.Wait()
	w.pingsOutside(t, outside4.Addr())
	s.stop(t)
}

// leftovers checks that the guest's kernel holds no object of the device for a user program.
func (w *world) leftovers(t *testing.T) string {
	t.Helper()
	var held []string
	kinds := []string{"qp", "cq", "mr", "pd", "ctx"}
	if w.kernel.Version == "5.10" {
		kinds = kinds[:4] // which cannot list contexts
	}
	for _, kind := range kinds {
		for line := range strings.Lines(w.run(t, "rdma", "resource", "show", kind)) {
			if strings.Contains(line, "pid ") {
				held = append(held, fmt.Sprintf("%s: %s", kind, strings.TrimSpace(line)))
			}
		}
	}
	return strings.Join(held, "\n")
}
