package main

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// TestDrainToKernel tells a server on the host's own address to end, under 64 clients and 8
// transfers, from outside and from the host: Linux accepts who comes, no request fails and nothing
// is reset, until a second signal.
func TestDrainToKernel(t *testing.T) {
	server, client := vethLab(t)
	addServerAddresses(t, server)
	d := newDrained(t, server, "host --handover-to-kernel --log-level info", "10m")
	c, stop := startUpgradeClients(t, client, server)
	c.atWork(640)
	d.cmd.Process.Signal(unix.SIGTERM)
	for _, line := range []string{"Linux accepts new clients", "Linux serves alone"} {
		if err := d.errs.await(line); err != nil {
			t.Fatal(err, d.errs)
		}
		c.atWork(640)
		// later it may answer the end of a connection that its client has closed
		if n := resets(t, server); n != "0" && !strings.Contains(d.errs.String(), "drained") {
			t.Errorf("the kernel has sent %s RSTs", n)
		}
	}
	stop()
	c.running.Wait()
	t.Logf("%d requests, %d transfers", c.requests.Load(), c.transfers.Load())
	d.cmd.Process.Signal(unix.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, d.errs)
	}
	d.expectRefused(client)
}

// startUpgradeClients starts 64 clients of a web server and 8 transfers, one in four on its host.
func startUpgradeClients(t *testing.T, client, server *lab.Net) (*upgradeClients, func()) {
	w := upgradeWorld{clients: []*lab.Net{client, server}}
	c, stop := newUpgradeClients(t)
	for n := range 64 {
		c.running.Go(func() { c.echo(w.client(n), n) })
	}
	for n := range 8 {
		c.running.Go(func() { c.download(w.client(n)) })
	}
	return c, stop
}

// resets is how many segments with RST the kernel of a namespace has sent.
func resets(t *testing.T, n *lab.Net) (count string) {
	t.Helper()
	if err := n.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		_, tcp, _ := strings.Cut(string(text), "\nTcp: ")
		_, tcp, _ = strings.Cut(tcp, "\nTcp: ")
		count = strings.Fields(tcp)[13] // OutRsts
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return count
}
