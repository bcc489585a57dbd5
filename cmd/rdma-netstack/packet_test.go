package main

import (
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

// vethLab is a namespace in which the server runs, on veth0, and one whose kernel is the clients'.
func vethLab(t *testing.T) (server, client *lab.Net) {
	t.Helper()
	need.NetNS(t)
	nets := [2]*lab.Net{}
	for i, name := range []string{"server", "client"} {
		n, err := lab.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nets[i] = n
	}
	err := lab.Cable(nets[0], "veth0", nets[1], "veth0")
	for i, p := range []string{"192.0.2.2/24", "192.0.2.1/24"} {
		if err == nil {
			err = nets[i].Do(func() error {
				return lab.Up("veth0",
					lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix(p)}})
			})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return nets[0], nets[1]
}

// TestServeThroughXDP serves through AF_XDP, with a MAC of the server's own and on the host's
// address.
func TestServeThroughXDP(t *testing.T) {
	for _, c := range []struct{ args, said, client, want string }{
		{"http --address 192.0.2.10/24 --root .", "copies: the driver has no zero copy, 1 queue, " +
			"sent by packet sockets", "curl -sS --max-time 30 http://192.0.2.10/page", "a page\n"},
		{"http --address 192.0.2.10/24 --root . --xdp-send rings --xdp-copy",
			"in copies: as asked for, 1 queue, sent by its rings",
			"curl -sS --max-time 30 http://192.0.2.10/page", "a page\n"},
		{"http --address host --root .", "served through AF_XDP",
			"curl -sS --max-time 30 http://192.0.2.2/page", "a page\n"},
		{"dns --address host --zone z", "served through AF_XDP",
			"dig -r +short @192.0.2.2 ns.example A", "192.0.2.53\n"},
		{"dns --address host --zone z --xdp-send rings", "sent by its rings",
			"dig -r +short +tcp @192.0.2.2 ns.example A", "192.0.2.53\n"},
	} {
		t.Run(c.args, func(t *testing.T) {
			server, client := vethLab(t)
			onwire.Make(t, "veth0", server, client)
			s := &script{t: t, dir: t.TempDir(), net: server}
			s.unpack("-- page --\na page\n-- z --\n" + zoneOfNS)
			if err := s.start(append([]string{"serve", "--device", "veth0", "--backend", "xdp",
				"--log-level", "info"}, strings.Fields(c.args)...)); err != nil {
				t.Fatal(err)
			}
			if err := s.out.await("try: "); err != nil {
				t.Fatal(err, s.errs)
			}
			if said := s.errs.String(); !strings.Contains(said, c.said) {
				t.Errorf("said %q, want %q", said, c.said)
			}
			words := strings.Fields(c.client)
			k := &script{t: t, dir: t.TempDir(), net: client}
			if err := k.run(k.command(append([]string{need.Tool(t, words[0])},
				words[1:]...))); err != nil || k.stdout != c.want {
				t.Errorf("%s: %v, %q, %s; want %q", c.client, err, k.stdout, k.stderr, c.want)
			}
			s.stop(t)
		})
	}
}

// TestQueuesUnderXDP adds a receive queue to an interface that is served through AF_XDP, and takes
// it away: log, health and counters tell, and the rules name program and queues.
func TestQueuesUnderXDP(t *testing.T) {
	server, client := vethLab(t)
	onwire.Make(t, "veth0", server, client)
	ethtool := need.Tool(t, "ethtool")
	set := func(queues string) error {
		return server.Do(func() error {
			return exec.Command(ethtool, "-L", "veth0", "rx", queues).Run()
		})
	}
	need.That(t, "veth-queues", set("2"))
	if err := set("1"); err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: t.TempDir(), net: server}
	s.unpack("-- page --\na page\n")
	if err := s.start(strings.Fields("serve http --root . --device veth0 --backend xdp --address " +
		"192.0.2.10/24 --log-level info")); err != nil {
		t.Fatal(err)
	}
	if err := s.out.await("try: "); err != nil {
		t.Fatal(err, s.errs)
	}
	expect := func(command string, want ...string) {
		t.Helper()
		k := &script{t: t, dir: s.dir, net: server}
		args := append(strings.Fields(command), "--pid", number(s.background.Process.Pid))
		if err := k.run(k.program(args)); err != nil || k.code != 0 {
			t.Fatalf("%s: %v, %d: %s", command, err, k.code, k.stderr)
		}
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(k.stdout) {
				t.Errorf("%s: %q is not in:\n%s", command, w, k.stdout)
			}
		}
	}
	const fine = `reporter rx\n +state [^\n]+\n +reporter` // no reason, no notice
	for _, step := range []struct{ queues, said, rule, health, changes string }{
		{"", "served through AF_XDP", "AF_XDP queues", fine, "0"},
		{"2", "come by packet sockets, not AF_XDP.*receives by 2 queues and has sockets on 1",
			"1 AF_XDP queues of 2", "receives by 2 queues", "1"},
		{"1", "every receive queue has an AF_XDP socket", "AF_XDP queues", fine, "2"},
	} {
		if step.queues != "" {
			if err := set(step.queues); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.errs.await(step.said); err != nil {
			t.Fatal(err)
		}
		expect("status rules", `unicast, MAC [0-9a-f:]{17} +`+step.rule+` +`+
			number(s.background.Process.Pid)+`, XDP program \d+ `)
		expect("status health", step.health)
		expect("status stats --all", "xdp_netdev_queue_changes: "+step.changes+"\n",
			"xdp_queues_bound: 1\n")
	}
	s.stop(t)
}

// TestServeOnAnyInterface serves on a veth interface, and sends requests from the kernel behind the
// other end with curl and dig.
func TestServeOnAnyInterface(t *testing.T) {
	for _, c := range []struct{ what, args, said, client, want string }{
		{"http", "--root .", "veth0 is a veth: served through AF_PACKET, not from rings",
			"curl -sS --max-time 30 http://192.0.2.10/page", "a page\n"},
		{"http", "--backend packet --queues 2 --root .", "",
			"curl -sS --max-time 30 http://192.0.2.10/page", "a page\n"},
		{"dns", "--zone z", "served through AF_PACKET", "dig -r +short @192.0.2.10 ns.example A",
			"192.0.2.53\n"},
	} {
		t.Run(c.what+" "+c.args, func(t *testing.T) {
			server, client := vethLab(t)
			s := &script{t: t, dir: t.TempDir(), net: server}
			s.unpack("-- page --\na page\n-- z --\n$ORIGIN example.\n" +
				"@ 60 IN SOA ns host 1 2 3 4 5\n@ 60 IN NS ns\nns 60 IN A 192.0.2.53\n")
			if err := s.start(append([]string{"serve", c.what, "--device", "veth0",
				"--address", "192.0.2.10/24"}, strings.Fields(c.args)...)); err != nil {
				t.Fatal(err)
			}
			if err := s.out.await("try: "); err != nil {
				t.Fatal(err, s.errs)
			}
			if said := s.errs.String(); !strings.Contains(said, c.said) ||
				c.said == "" && strings.Contains(said, "AF_PACKET") {
				t.Errorf("said %q, want %q", said, c.said)
			}
			words := strings.Fields(c.client)
			k := &script{t: t, dir: t.TempDir(), net: client}
			if err := k.run(k.command(append([]string{need.Tool(t, words[0])},
				words[1:]...))); err != nil || k.stdout != c.want {
				t.Errorf("%s: %v, %q, %s; want %q", c.client, err, k.stdout, k.stderr, c.want)
			}
			s.stop(t)
		})
	}
}

// TestPrefixOnAnyInterface asks at addresses of a prefix over packet and AF_XDP sockets. dig and
// the kernel take no answer from another address.
func TestPrefixOnAnyInterface(t *testing.T) {
	for _, backend := range []string{"packet", "xdp"} {
		t.Run(backend, func(t *testing.T) {
			server, client := vethLab(t)
			if backend == "xdp" {
				onwire.Make(t, "veth0", server, client)
			}
			s := &script{t: t, dir: t.TempDir(), net: server}
			s.unpack("-- z --\n" + zoneOfNS)
			if err := s.start([]string{"serve", "dns", "--device", "veth0", "--backend", backend,
				"--zone", "z", "--address", "192.0.2.10/24", "--address", "2001:db8::10/64",
				"--local-prefix", "198.51.100.0/24",
				"--local-prefix", "2001:db8:1::/48"}); err != nil {
				t.Fatal(err)
			}
			if err := s.out.await("try: "); err != nil {
				t.Fatal(err, s.errs)
			}
			for _, c := range []struct{ command, want string }{
				{"ip -6 address add 2001:db8::1/64 dev veth0 nodad", ""},
				{"ip route add 198.51.100.0/24 via 192.0.2.10", ""},
				{"ip -6 route add 2001:db8:1::/48 via 2001:db8::10", ""},
				{"dig -r +short @198.51.100.255 ns.example A", "192.0.2.53\n"},
				{"dig -r +short +tcp @198.51.100.0 ns.example A", "192.0.2.53\n"},
				{"dig -r +short @2001:db8:1:7::9 ns.example A", "192.0.2.53\n"},
				{"dig -r +short +tcp @2001:db8:1:: ns.example A", "192.0.2.53\n"},
			} {
				words := strings.Fields(c.command)
				k := &script{t: t, dir: t.TempDir(), net: client}
				if err := k.run(k.command(append([]string{need.Tool(t, words[0])},
					words[1:]...))); err != nil || k.stdout != c.want {
					t.Errorf("%s: %v, %q, %s; want %q", c.command, err, k.stdout, k.stderr,
						c.want)
				}
			}
			s.stop(t)
		})
	}
}

// TestPacketRefusals requires one sentence that says what to do.
func TestPacketRefusals(t *testing.T) {
	server, _ := vethLab(t)
	for _, c := range []struct {
		name, args, want string
		nobody           bool
		code             int
	}{
		{name: "rings", args: "--device veth0 --backend rings", code: 1, want: "RDMA"},
		{name: "no such interface", args: "--device eth7 --backend packet", code: 1,
			want: `there is no interface eth7 here: "ip link" lists those there are`},
		{name: "neither", args: "--device eth7", code: 1,
			want: `nor is there an interface eth7: "ip link" lists those there are`},
		{name: "nobody", args: "--device veth0", nobody: true, code: 1,
			want: "packet sockets need CAP_NET_RAW: setcap cap_net_raw+ep on the program, " +
				"docker --cap-add NET_RAW, or be root"},
		{name: "word", args: "--device veth0 --backend ring", code: 2,
			want: "want auto, rings, packet or xdp"},
		{name: "veth", args: "--device veth0 --backend xdp", code: 1,
			want: "veth0 is a veth and not to be served through AF_XDP: senders on this machine"},
		{name: "xdp without an interface", args: "--device eth7 --backend xdp", code: 1,
			want: `there is no interface eth7 here: "ip link" lists those there are`},
		{name: "the netdev's MAC, xdp", args: "--device veth0 --backend xdp --mac netdev", code: 2,
			want: "leave out --mac netdev, or --backend"},
		{name: "a flag of xdp", args: "--device veth0 --xdp-copy", code: 2,
			want: "--xdp-copy is for --backend xdp"},
		{name: "the netdev's MAC", args: "--device veth0 --backend packet --mac netdev", code: 2,
			want: "leave out --mac netdev, or --backend"},
		{name: "the netdev's MAC, auto", args: "--device veth0 --mac netdev", code: 1,
			want: "packet sockets cannot take frames from Linux"},
		{name: "sim", args: "--device sim --backend packet", code: 2,
			want: "--backend packet is for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{t: t, dir: t.TempDir(), net: server, nobody: c.nobody}
			args := append([]string{"serve", "http", "--address", "192.0.2.10/24"},
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

// TestDoctorOfXDP names what keeps an interface from being served through AF_XDP, and what does
// not.
func TestDoctorOfXDP(t *testing.T) {
	server, client := vethLab(t)
	for _, c := range []struct {
		name, args string
		nobody     bool
		code       int
		want       []string
	}{
		{"veth", "--device veth0", false, 1,
			[]string{"failed   interface: veth0 is a veth", "4 checks, 1 failed, 1 notes"}},
		{"on the wire", "--device veth0", false, 0,
			[]string{"zero copy: frames are copied: the driver has no zero copy",
				"4 checks, 0 failed, 1 notes"}},
		{"nobody", "--device veth0", true, 1, []string{"failed   capabilities: CAP_NET_RAW and " +
			"CAP_NET_ADMIN and CAP_BPF missing"}},
		{"no interface", "--device eth7", false, 1, []string{"there is no interface eth7 here"}},
		{"none named", "", false, 2,
			[]string{"--backend xdp looks at the interface that --device"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "veth" {
				onwire.Make(t, "veth0", server, client)
			}
			s := &script{t: t, dir: t.TempDir(), net: server, nobody: c.nobody}
			if err := s.run(s.program(append([]string{"doctor", "--backend", "xdp"},
				strings.Fields(c.args)...))); err != nil {
				t.Fatal(err)
			}
			said := s.stdout + s.stderr
			for _, want := range c.want {
				if s.code != c.code || !strings.Contains(said, want) {
					t.Errorf("code %d, %q; want code %d, %q", s.code, said, c.code, want)
				}
			}
		})
	}
}
