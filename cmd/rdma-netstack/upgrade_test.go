package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

// upgradesEnv is how many upgrades TestUpgrade makes. Default 2.
const upgradesEnv = "RDMA_NETSTACK_UPGRADES"

// upgraded is a server that is replaced by the next again and again.
type upgraded struct {
	*script
	args []string
	env  string // its runtime directory

	cmd       *exec.Cmd
	out, errs *growing
}

func newUpgraded(t *testing.T, n *lab.Net, dir, args string) *upgraded {
	if !strings.Contains(args, "--backend") {
		args += " --backend packet"
	}
	return &upgraded{script: &script{t: t, dir: dir, net: n},
		env:  "RUNTIME_DIRECTORY=" + t.TempDir(),
		args: append(strings.Fields(args), "--take-over", "auto", "--log-level", "info")}
}

// start starts a server in the place of the one that runs, if any, and returns that.
func (u *upgraded) start() (before *exec.Cmd, said *growing) {
	u.t.Helper()
	before, said = u.cmd, u.errs
	u.cmd, u.out, u.errs = u.program(u.args), newGrowing(), newGrowing()
	u.cmd.Env = append(u.cmd.Env, u.env)
	u.cmd.Stdout, u.cmd.Stderr = u.out, u.errs
	if err := u.launch(u.cmd); err != nil {
		u.t.Fatal(err)
	}
	cmd := u.cmd
	u.t.Cleanup(func() { cmd.Process.Kill() })
	if err := u.out.await("try: "); err != nil {
		u.t.Fatal(err, u.errs)
	}
	return before, said
}

func (u *upgraded) next() { u.start() }

// upgrade replaces the server; the one before has to end by itself, with nothing cut.
func (u *upgraded) upgrade() {
	u.t.Helper()
	before, said := u.start()
	if err := before.Wait(); err != nil ||
		!strings.Contains(said.String(), "drained: no connection was cut") {
		u.t.Errorf("the server before ended with %v: %s", err, said)
	}
	if slices.Contains(u.args, "xdp") { // without any capability for that
		if err := u.errs.await("every receive queue has an AF_XDP socket"); err != nil {
			u.t.Error(err, u.errs)
		}
	}
}

// end has the last server end by itself.
func (u *upgraded) end() {
	u.cmd.Process.Signal(os.Interrupt)
	if err := u.cmd.Wait(); err != nil {
		u.t.Errorf("the last server: %v, %s", err, u.errs)
	}
}

// replaceHeld replaces the server while it has a connection that it cannot finish, has meanwhile
// called, kills the server before, and returns when the next one knows.
func (u *upgraded) replaceHeld(meanwhile func()) {
	u.t.Helper()
	before, said := u.start()
	meanwhile()
	before.Process.Kill()
	if err := before.Wait(); err == nil {
		u.t.Errorf("the server before has ended by itself: %s", said)
	}
	if err := u.errs.await("the process taken over from has ended"); err != nil {
		u.t.Error(err)
	}
}

// upgradable is a server that is replaced by the next again and again: processes on packet sockets,
// or stacks of this process on rings of one software NIC.
type upgradable interface {
	next() // the first
	upgrade()
	replaceHeld(meanwhile func())
	end()
}

// upgradeClients are clients of both servers.
type upgradeClients struct {
	t                         *testing.T
	ctx                       context.Context
	running                   sync.WaitGroup
	requests, transfers, asks atomic.Int64
	slowest                   atomic.Int64 // request or query so far, in nanoseconds
}

// took notes how long a request or query has taken.
func (c *upgradeClients) took(since time.Time) {
	d := int64(time.Since(since))
	for {
		most := c.slowest.Load()
		if d <= most || c.slowest.CompareAndSwap(most, d) {
			return
		}
	}
}

func newUpgradeClients(t *testing.T) (*upgradeClients, context.CancelFunc) {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	return &upgradeClients{t: t, ctx: ctx}, stop
}

// atWorkSoFar is how many requests and queries there have been.
func (c *upgradeClients) atWorkSoFar() int64 { return c.requests.Load() + c.asks.Load() }

// atWork waits until there have been n requests or queries more.
func (c *upgradeClients) atWork(n int64) {
	for before := c.atWorkSoFar(); c.atWorkSoFar() < before+n && !c.t.Failed(); {
		time.Sleep(10 * time.Millisecond)
	}
}

// echo posts again and again on connections that are kept, in a way that net/http does not repeat.
func (c *upgradeClients) echo(from *lab.Net, n int) {
	client := http.Client{Transport: &http.Transport{DialContext: from.DialContext},
		Timeout: stepTime}
	defer client.CloseIdleConnections()
	for i := 0; c.ctx.Err() == nil; i++ {
		body, began := fmt.Sprint(n, i), time.Now()
		resp, err := client.Post("http://192.0.2.10/-/echo", "text/plain",
			io.NopCloser(strings.NewReader(body)))
		var got []byte
		if err == nil {
			got, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err != nil || string(got) != body {
			c.t.Errorf("request %d of client %d: %v, %q", i, n, err, got)
			return
		}
		c.took(began)
		c.requests.Add(1)
		time.Sleep(5 * time.Millisecond) // a client's pace
	}
}

// download transfers 2 MiB slowly again and again.
func (c *upgradeClients) download(from *lab.Net) {
	const size = 2 << 20
	client := http.Client{Transport: &http.Transport{DialContext: from.DialContext,
		DisableKeepAlives: true}, Timeout: stepTime}
	for c.ctx.Err() == nil {
		resp, err := client.Get(fmt.Sprint("http://192.0.2.10/-/bytes/", size))
		n := int64(0)
		for err == nil {
			var m int64
			m, err = io.CopyN(io.Discard, resp.Body, 64<<10)
			n += m
			time.Sleep(10 * time.Millisecond) // a slow line
		}
		if n != size {
			c.t.Errorf("a transfer ended after %d of %d bytes: %v", n, size, err)
			return
		}
		resp.Body.Close()
		c.transfers.Add(1)
	}
}

// ask queries the DNS server again and again, each time once.
func (c *upgradeClients) ask(from *lab.Net, network string) {
	q := new(dns.Msg)
	for c.ctx.Err() == nil {
		began := time.Now()
		q.SetQuestion("ns.example.", dns.TypeA)
		conn, err := from.DialContext(context.Background(), network, "192.0.2.11:53")
		var r *dns.Msg
		if err == nil {
			r, _, err = (&dns.Client{Net: network, Timeout: 20 * time.Second}).
				ExchangeWithConn(q, &dns.Conn{Conn: conn})
			conn.Close()
		}
		if err != nil || len(r.Answer) != 1 {
			c.t.Errorf("a query over %s: %v, %v", network, err, r)
			return
		}
		c.took(began)
		c.asks.Add(1)
		time.Sleep(5 * time.Millisecond) // a client's pace
	}
}

// upgrades is how many a test makes.
func upgrades(t *testing.T) int {
	if text := os.Getenv(upgradesEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(upgradesEnv, err)
		}
		return n
	}
	return 2
}

const (
	webServer  = "serve http --device veth0 --debug-endpoints --address "
	nameServer = "serve dns --device veth0 --zone z --response-rate 0 --address "
	zoneOfNS   = "$ORIGIN example.\n@ 60 IN SOA ns host 1 2 3 4 5\n@ 60 IN NS ns\n" +
		"ns 60 IN A 192.0.2.53\n"
)

// upgradeWorld is a web and a DNS server, and where their clients are.
type upgradeWorld struct {
	web, names upgradable
	clients    []*lab.Net // others, and on the host's own address the host itself
}

// onEachLink runs a test on packet sockets and on AF_XDP, with addresses of the servers' own and
// with the host's, and on rings.
func onEachLink(t *testing.T, test func(*testing.T, upgradeWorld)) {
	t.Run("rings", func(t *testing.T) {
		server, client := vethLab(t)
		web, names := newRingServers(t, server)
		test(t, upgradeWorld{web, names, []*lab.Net{client}})
	})
	on := func(t *testing.T, server *lab.Net, web, names string, clients ...*lab.Net) {
		files := &script{t: t, dir: t.TempDir()}
		files.unpack("-- z --\n" + zoneOfNS)
		test(t, upgradeWorld{newUpgraded(t, server, files.dir, webServer+web),
			newUpgraded(t, server, files.dir, nameServer+names), clients})
	}
	t.Run("packet sockets", func(t *testing.T) {
		server, client := vethLab(t)
		on(t, server, "192.0.2.10/24", "192.0.2.11/24", client)
	})
	t.Run("the host's own address", func(t *testing.T) {
		server, client := vethLab(t)
		addServerAddresses(t, server)
		on(t, server, "host", "host", client, server)
	})
	// An interface has one server with AF_XDP; the other is on packet sockets beside it.
	t.Run("AF_XDP", func(t *testing.T) {
		server, client := vethLab(t)
		onwire.Make(t, "veth0", server, client)
		on(t, server, "192.0.2.10/24 --backend xdp", "192.0.2.11/24", client)
	})
	t.Run("AF_XDP on the host's own address", func(t *testing.T) {
		server, client := vethLab(t)
		onwire.Make(t, "veth0", server, client)
		addServerAddresses(t, server)
		on(t, server, "host --backend xdp", "host", client, server)
	})
}

// addServerAddresses makes the servers' addresses those of the host.
func addServerAddresses(t *testing.T, server *lab.Net) {
	t.Helper()
	if err := server.Do(func() error {
		return lab.Up("veth0", lab.Setup{Addresses: []netip.Prefix{
			netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("192.0.2.11/24")}})
	}); err != nil {
		t.Fatal(err)
	}
}

// client is where client n is: one in four on the host itself, if there are any.
func (w upgradeWorld) client(n int) *lab.Net {
	if n%4 == 3 {
		return w.clients[len(w.clients)-1]
	}
	return w.clients[0]
}

// TestUpgrade replaces a web and a DNS server by the next ones several times in a row, under 64
// clients of the first, 8 transfers from it and 4 clients of the other, or a quarter of the first
// two if it is not told how often: none may notice.
func TestUpgrade(t *testing.T) { onEachLink(t, testUpgrade) }

func testUpgrade(t *testing.T, w upgradeWorld) {
	web, names := w.web, w.names
	part := 1
	if os.Getenv(upgradesEnv) == "" {
		part = 4
	}
	web.next()
	names.next()
	c, stop := newUpgradeClients(t)
	for n := range 64 / part {
		c.running.Go(func() { c.echo(w.client(n), n) })
	}
	for n := range 8 / part {
		c.running.Go(func() { c.download(w.client(n)) })
	}
	for n, network := range []string{"udp", "tcp", "tcp", "udp"} {
		c.running.Go(func() { c.ask(w.client(n), network) })
	}
	for i, n := 0, upgrades(t); i < n && !t.Failed(); i++ {
		c.atWork(64 / int64(part))
		began := time.Now()
		web.upgrade()
		names.upgrade()
		t.Logf("upgrade %d: %v; %d requests, %d transfers, %d queries so far, the slowest in %v",
			i+1, time.Since(began).Round(time.Millisecond), c.requests.Load(), c.transfers.Load(),
			c.asks.Load(), time.Duration(c.slowest.Swap(0)).Round(time.Millisecond))
	}
	stop()
	c.running.Wait()
	if c.transfers.Load() == 0 || c.asks.Load() == 0 {
		t.Errorf("%d transfers, %d queries: want some", c.transfers.Load(), c.asks.Load())
	}
	web.end()
	names.end()
}

// TestUpgradeKilled kills the web server before, which still has connections, while clients use the
// next: of these none may notice. The connections of the one that is killed end when their client
// sends something.
func TestUpgradeKilled(t *testing.T) { onEachLink(t, testUpgradeKilled) }

func testUpgradeKilled(t *testing.T, w upgradeWorld) {
	web := w.web
	web.next()
	for i, n := 0, upgrades(t); i < n && !t.Failed(); i++ {
		held, err := w.client(0).DialContext(t.Context(), "tcp", "192.0.2.10:80")
		if err != nil {
			t.Fatal(err)
		}
		held.SetDeadline(time.Now().Add(stepTime))
		// a request whose body is under way: its server cannot end
		fmt.Fprint(held, "POST /-/echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"+
			"Content-Length: 1000\r\n\r\n")
		if line, err := bufio.NewReader(held).ReadString('\n'); err != nil ||
			!strings.Contains(line, "100 Continue") {
			t.Fatalf("the request before: %v, %q", err, line)
		}
		c, stop := newUpgradeClients(t)
		web.replaceHeld(func() {
			for n := range 16 {
				c.running.Go(func() { c.echo(w.client(n), n) })
			}
			c.running.Go(func() { c.download(w.client(0)) })
			c.atWork(64)
		})
		fmt.Fprint(held, "some of the body")
		if _, err := io.ReadAll(held); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection of the server that was killed: %v, want it reset", err)
		}
		held.Close()
		c.atWork(64)
		stop()
		c.running.Wait()
		t.Logf("kill %d: %d requests, %d transfers", i+1, c.requests.Load(), c.transfers.Load())
	}
	web.end()
}
