package main

import (
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestServeAnyPort has each server listen on port 0: it prints the port that it has, the same for
// UDP and TCP.
func TestServeAnyPort(t *testing.T) {
	need.NetNS(t)
	need.TUN(t)
	machine, err := lab.New("machine")
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	zone := "-- z --\n$ORIGIN example.\n@ 60 IN SOA ns host 1 2 3 4 5\n@ 60 IN NS ns\nns 60 IN A " +
		"192.0.2.53\n"
	for _, c := range []struct{ what, more, line string }{
		{"http", "", `try: curl http://([0-9.]+):(\d+)/`},
		{"dns", "--zone z", `try: dig @([0-9.]+) -p (\d+) `},
		{"iperf3", "", `try: iperf3 -c ([0-9.]+) -p (\d+)$`},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := &script{t: t, dir: t.TempDir(), net: machine}
			s.unpack(zone)
			if err := s.start(append([]string{"serve", c.what, "--device", "sim", "--listen", ":0"},
				strings.Fields(c.more)...)); err != nil {
				t.Fatal(err)
			}
			if err := s.out.await(c.line); err != nil {
				t.Fatal(err, s.errs)
			}
			at := regexp.MustCompile("(?m)" + c.line).FindStringSubmatch(s.out.String())
			conn, err := machine.DialContext(t.Context(), "tcp", net.JoinHostPort(at[1], at[2]))
			if err != nil {
				t.Error(err)
			} else {
				conn.Close()
			}
			if c.what == "dns" {
				s.answers(t, "dig", "-r", "+short", "@"+at[1], "-p", at[2], "ns.example", "A")
				s.answers(t, "dig", "-r", "+short", "+tcp", "@"+at[1],
					"-p", at[2], "ns.example", "A")
			}
			s.stop(t)
		})
	}
}

// answers runs a client that must get the zone's address.
func (s *script) answers(t *testing.T, client string, args ...string) {
	t.Helper()
	cmd := s.command(append([]string{need.Tool(t, client)}, args...))
	if err := s.run(cmd); err != nil || s.stdout != "192.0.2.53\n" {
		t.Errorf("%s: %v, %q", client, err, s.stdout)
	}
}
