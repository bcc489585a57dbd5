package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestServeOnHost serves on the address of an interface, for clients beyond it and on the machine
// itself.
func TestServeOnHost(t *testing.T) {
	for _, c := range []struct{ what, args, said, client, want string }{
		{"http", "--root .", "serving HTTP on 192.0.2.2",
			"curl -sS --max-time 30 http://192.0.2.2/page",
			"a page\n"},
		{"dns", "--zone z", "(the host's own on veth0)", "dig -r +short @192.0.2.2 ns.example A",
			"192.0.2.53\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			server, client := vethLab(t)
			s := &script{t: t, dir: t.TempDir(), net: server}
			s.unpack("-- page --\na page\n-- z --\n$ORIGIN example.\n" +
				"@ 60 IN SOA ns host 1 2 3 4 5\n@ 60 IN NS ns\nns 60 IN A 192.0.2.53\n")
			if err := s.start(append([]string{"serve", c.what, "--device", "veth0",
				"--address", "host"}, strings.Fields(c.args)...)); err != nil {
				t.Fatal(err)
			}
			if err := s.out.await("try: "); err != nil {
				t.Fatal(err, s.errs)
			}
			if said := s.out.String(); !strings.Contains(said, c.said) {
				t.Errorf("said %q, want %q", said, c.said)
			}
			words := strings.Fields(c.client)
			for name, from := range map[string]*lab.Net{"outside": client, "the host": server} {
				k := &script{t: t, dir: t.TempDir(), net: from}
				if err := k.run(k.command(append([]string{need.Tool(t, words[0])},
					words[1:]...))); err != nil || k.stdout != c.want {
					t.Errorf("%s: %s: %v, %q, %s; want %q", name, c.client, err, k.stdout, k.stderr,
						c.want)
				}
			}
			s.stop(t)
		})
	}
}

// TestHostRefusals requires one sentence that says what to do.
func TestHostRefusals(t *testing.T) {
	server, _ := vethLab(t)
	other, err := server.Listen("tcp", "192.0.2.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, c := range []struct {
		name, args, want string
		code             int
	}{
		{"another address", "--device veth0 --address auto", "leave out the other --address", 2},
		{"a router", "--device veth0 --gateway 192.0.2.1", "--gateway is for a slice", 2},
		{"a MAC", "--device veth0 --mac netdev", "--mac is for a slice", 2},
		{"the software NIC", "--device sim", "--address host is for an interface", 2},
		{"rings", "--device veth0 --backend rings", "open veth0: ", 1},
		{"no such interface", "--device eth7", "eth7", 1},
		{"a port of the kernel", "--device veth0 --backend packet",
			"bind: address already in use (another process " +
				"of this host has the port: ss -tulpn)", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{t: t, dir: t.TempDir(), net: server}
			args := append([]string{"serve", "http", "--address", "host"},
				strings.Fields(c.args)...)
			if err := s.run(s.program(args)); err != nil {
				t.Fatal(err)
			}
			if s.code != c.code || !strings.Contains(s.stderr, c.want) ||
				strings.Count(s.stderr, "\n") != 1 {
				t.Errorf("code %d, %q; want code %d, %q", s.code, s.stderr, c.code, c.want)
			}
		})
	}
}

// TestHostDemo runs the demonstration on one address with programs and with Go clients, and as an
// ordinary user.
func TestHostDemo(t *testing.T) {
	need.NetNS(t)
	for _, row := range []struct {
		name, flags string
		nobody      bool
	}{{"programs", "", false}, {"Go clients", "--clients go", false}, {"ordinary user", "", true}} {
		t.Run(row.name, func(t *testing.T) {
			if row.nobody {
				need.UserNS(t)
			}
			s := &script{t: t, dir: t.TempDir(), nobody: row.nobody}
			if err := s.enter(); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"demo", "--json", "--address", "host"},
				strings.Fields(row.flags)...)
			if err := s.run(s.program(args)); err != nil {
				t.Fatal(err, s.stderr)
			}
			var got demoReport
			if err := json.Unmarshal([]byte(s.stdout), &got); err != nil {
				t.Fatalf("printed %q, %q: %v", s.stdout, s.stderr, err)
			}
			for _, c := range got.Checks {
				t.Logf("%s: %v: %s", c.Name, c.OK, c.Detail)
			}
			if !got.OK || s.code != exitDone || len(got.Checks) != 7 || got.Host == nil ||
				got.Host.Accepted == 0 || got.Host.Received == 0 ||
				!got.Host.Rules || got.Counters["slice"].TxBytes < 1<<20 {
				t.Errorf("code %d, error %q, stderr %q, %+v, %+v", s.code, got.Error, s.stderr,
					got.Host, got.Counters)
			}
			if err := gone(s.mark()); err != nil {
				t.Error(err)
			}
		})
	}
}
