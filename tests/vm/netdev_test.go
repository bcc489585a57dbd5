//go:build linux

package vm

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Ports of the servers.
const (
	netdevPort  = 8081 // the guest's kernel
	outsidePort = 8082 // outside
)

// bulk is enough for many TCP windows, and small enough for an emulated processor.
const bulk = 8 << 20

// testNetdevTCP transfers bytes over the guest kernel's TCP, both ways and as server and client,
// with checksum offload and segmentation on, as they are by default.
func testNetdevTCP(t *testing.T, w *world) {
	contains(t, w.run(t, "ethtool", "-k", "eth0"), "tx-checksumming: on", "rx-checksumming: on",
		"tcp-segmentation-offload: on")
	w.served(t)
	before := w.nic.Counters()
	if err := w.client.Download(w.ctx, url(netdev4, netdevPort), bulk); err != nil {
		t.Errorf("download from the guest: %v", err)
	}
	if err := w.client.Echo(w.ctx, url(netdev6, netdevPort), bulk/4); err != nil {
		t.Errorf("echo by the guest: %v", err)
	}
	after := w.nic.Counters()
	sent := after.Netdev.TxPackets - before.Netdev.TxPackets
	if lso := after.LSOWQEs - before.LSOWQEs; sent < bulk/1500 || lso == 0 || lso >= sent {
		t.Errorf("the netdev sent %d packets for %d bytes, and left %d to be cut by the NIC", sent,
			bulk, lso)
	}
	if n := after.ChecksumWQEs - before.ChecksumWQEs; n < after.LSOWQEs-before.LSOWQEs {
		t.Errorf("the netdev left %d checksums to the NIC", n)
	}
	testNetdevClient(t, w)
}

// testNetdevClient has the guest's kernel fetch from, and upload to, a server outside.
func testNetdevClient(t *testing.T, w *world) {
	ln, err := w.outside.Listen("tcp", fmt.Sprintf(":%d", outsidePort))
	if err != nil {
		t.Fatal(err)
	}
	s, err := httpd.New(httpd.Config{DebugEndpoints: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go s.Serve(ln)
	want := patternDigest(bulk)
	if got := w.must(t, rig.Request{Op: "fetch",
		Argv:    []string{fmt.Sprintf("%s/-/bytes/%d", url(outside4, outsidePort), bulk)},
		Timeout: patience}).Output; got != want {
		t.Errorf("the guest fetched %s, want %s", got, want)
	}
	if got := w.must(t, rig.Request{Op: "upload", Argv: []string{url(outside4, outsidePort) +
		"/-/echo", fmt.Sprint(bulk)}, Timeout: patience}).Output; got != want {
		t.Errorf("the guest's upload came back as %s, want %s", got, want)
	}
}

// patternDigest is what the guest reports for n bytes of httpd's pattern.
func patternDigest(n int) string {
	b := make([]byte, n)
	httpd.FillPattern(b, 0)
	return fmt.Sprintf("%d %x", n, sha256.Sum256(b))
}
