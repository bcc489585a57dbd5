package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestDrainToKernel tells a server on the host's own address to end, under 64 clients and 8
// transfers, or 8 clients of a DNS server, from outside and from the host: Linux accepts who comes,
// no request fails and nothing is reset, until a second signal. Confined servers do the same.
func TestDrainToKernel(t *testing.T) {
	const web, confined = "http --debug-endpoints ", "--seccomp --landlock "
	const names = "dns --zone z --response-rate 0 "
	for name, c := range map[string]struct {
		kind, port string
		start      func(*testing.T, *lab.Net, *lab.Net) (*upgradeClients, func())
	}{
		"HTTP": {web, "80", startUpgradeClients}, "HTTP confined": {web + confined, "80",
			startUpgradeClients},
		"DNS": {names, "53", startAskers}, "DNS confined": {names + confined, "53", startAskers},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(c.kind, confined) {
				need.That(t, "a program without cgo (CGO_ENABLED=0)", withoutCgo())
			}
			server, client := vethLab(t)
			addServerAddresses(t, server)
			d := newDrainedServer(t, server, c.kind+
				"--address host --handover-to-kernel --log-level info --drain 10m")
			clients, stop := c.start(t, client, server)
			d.drainsToKernel(clients, stop)
			d.expectRefused(client, c.port)
		})
	}
}

// withoutCgo says why this program cannot confine itself, if so.
func withoutCgo() error {
	info, ok := debug.ReadBuildInfo()
	if !ok || slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"}) {
		return errors.New("linked with cgo")
	}
	return nil
}

// drainsToKernel tells the server to end, twice.
func (d *drained) drainsToKernel(c *upgradeClients, stop func()) {
	d.t.Helper()
	c.atWork(640)
	d.cmd.Process.Signal(unix.SIGTERM)
	for _, line := range []string{"Linux accepts new clients", "Linux serves alone"} {
		if err := d.errs.await(line); err != nil {
			d.t.Fatal(err, d.errs)
		}
		c.atWork(640)
		// later it may answer the end of a connection that its client has closed
		if n := resets(d.t, d.net); n != 0 && !strings.Contains(d.errs.String(), "drained") {
			d.t.Errorf("the kernel has sent %d RSTs for connections that it does not have", n)
		}
	}
	stop()
	c.running.Wait()
	d.t.Logf("%d requests and queries, %d transfers", c.atWorkSoFar(), c.transfers.Load())
	d.cmd.Process.Signal(unix.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("it ended with %v: %s", err, d.errs)
	}
}

// startAskers starts 8 clients of a DNS server, half of them by TCP, one in four on its host.
func startAskers(t *testing.T, client, server *lab.Net) (*upgradeClients, func()) {
	w := upgradeWorld{clients: []*lab.Net{client, server}}
	c, stop := newUpgradeClients(t)
	for n := range 8 {
		c.running.Go(func() { c.ask(w.client(n), []string{"udp", "tcp"}[n/4]) })
	}
	return c, stop
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

// resets is how many segments with RST the kernel of a namespace has sent for connections that it
// does not have: not those of a program that has closed its own before all was read, as net/http
// does with an idle one that a request is on its way to.
func resets(t *testing.T, n *lab.Net) (count int) {
	t.Helper()
	if err := n.Do(func() error {
		snmp, err := counters("/proc/thread-self/net/snmp", "Tcp")
		if err != nil {
			return err
		}
		ext, err := counters("/proc/thread-self/net/netstat", "TcpExt")
		count = snmp["OutRsts"] - ext["TCPAbortOnClose"] - ext["TCPAbortOnData"]
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return count
}

// counters reads those of one kind from a file with a line of names and one of values for each.
func counters(path, kind string) (map[string]int, error) {
	text, err := os.ReadFile(path)
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, kind+": "); is {
			lines = append(lines, strings.Fields(rest))
		}
	}
	if err == nil && len(lines) != 2 {
		err = fmt.Errorf("%s has %d lines of %s, want 2", path, len(lines), kind)
	}
	all := map[string]int{}
	for i := 0; err == nil && i < len(lines[0]); i++ {
		all[lines[0][i]], err = strconv.Atoi(lines[1][i])
	}
	return all, err
}
