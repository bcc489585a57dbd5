package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// printedCommand is what the servers' machine says to type on another.
var printedCommand = regexp.MustCompile(`rdma-netstack (compare --host .*)\n`)

// TestCompareOnInterface runs both servers on one end of a veth pair, and the command that they
// print in the namespace of the other end, where each side must have been asked.
func TestCompareOnInterface(t *testing.T) {
	need.Long(t, "runs every load twice on both stacks, 5 s")
	server, client := vethLab(t)
	s := &script{t: t, dir: t.TempDir(), net: server}
	if err := s.start(strings.Fields(
		"compare --device veth0 --address 192.0.2.10/24")); err != nil {
		t.Fatal(err)
	}
	if err := s.out.await("another machine"); err != nil {
		t.Fatal(err, s.errs)
	}
	said := printedCommand.FindStringSubmatch(s.out.String())
	if said == nil || said[1] != "compare --host 192.0.2.2:8053 --slice 192.0.2.10:8053" {
		t.Fatalf("it says %q", s.out)
	}
	c := &script{t: t, dir: t.TempDir(), net: client, nobody: true}
	if err := c.run(c.program(append(strings.Fields(said[1]), "--json", "--time",
		"30ms"))); err != nil || c.code != exitDone {
		t.Fatalf("exit code %d, %v: %s", c.code, err, c.stderr)
	}
	var got struct {
		Host, Slice string
		Results     []struct {
			Name        string
			Host, Slice float64
		}
	}
	if err := json.Unmarshal([]byte(c.stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Host != "192.0.2.2:8053" || got.Slice != "192.0.2.10:8053" ||
		len(got.Results) < len(compareLoads("")) {
		t.Errorf("%s and %s, %d results", got.Host, got.Slice, len(got.Results))
	}
	for _, r := range got.Results {
		if r.Host <= 0 || r.Slice <= 0 {
			t.Errorf("%+v", r)
		}
	}
	s.stop(t)
}

// TestCompareSides refuses flags that are for the other machine, and a netdev without an address to
// compare with, in one sentence.
func TestCompareSides(t *testing.T) {
	server, client := vethLab(t)
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--host 192.0.2.2:8053", "--host and --slice go together", exitUsage},
		{"--host 192.0.2.2 --slice 192.0.2.10:8053", "want the server's ADDR:PORT", exitUsage},
		{"--device veth0 --address 192.0.2.10/24 --host 192.0.2.2:1 --slice 192.0.2.10:1",
			"a machine does not reach its own slice", exitUsage},
		{"--device veth0 --address 192.0.2.10/24 --json", "is for the clients' machine", exitUsage},
		{"--device veth0", "--address is missing", exitUsage},
		{"--device sim", "leave --device out", exitUsage},
		{"--port 53", "goes with --device", exitUsage},
		{"--device veth0 --address 192.0.2.10/24 --port 0", "want 1 to 65535", exitUsage},
		{"--device veth0 --address 2001:db8::10/64", "has no IPv6 address on veth0", exitFailed},
		{"--device veth1 --address 192.0.2.10/24", "veth1", exitFailed},
	} {
		t.Run(c.args, func(t *testing.T) {
			s := &script{t: t, dir: t.TempDir(), net: server}
			if err := s.run(s.program(append([]string{"compare"},
				strings.Fields(c.args)...))); err != nil {
				t.Fatal(err)
			}
			last := s.stderr[strings.LastIndex(strings.TrimSuffix(s.stderr, "\n"), "\n")+1:]
			if s.code != c.code || !strings.Contains(last, c.want) {
				t.Errorf("code %d, %q; want code %d, %q", s.code, s.stderr, c.code, c.want)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		s := &script{t: t, dir: t.TempDir(), net: client}
		if err := s.run(s.program(strings.Fields("compare --host 192.0.2.2:1 " +
			"--slice 192.0.2.2:1 --time 10ms"))); err != nil {
			t.Fatal(err)
		}
		if s.code != exitFailed || !strings.Contains(s.stderr, "the host's stack") ||
			!strings.Contains(s.stderr, "connection refused") {
			t.Errorf("code %d, %q", s.code, s.stderr)
		}
	})
}
