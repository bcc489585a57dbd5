package xdp

import (
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// TestRefuse: each interface that cannot be served is refused in one sentence, with what to do.
func TestRefuse(t *testing.T) {
	good := facts{name: "eth0", driver: "ice", mtu: 1500, queues: 4, featuresKnown: true,
		features: featureBasic | featureRedirect | featureZeroCopy}
	if err := good.refuseConfig(&Config{}); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		name   string
		change func(f *facts, c *Config)
		want   string
	}{
		{"tun", func(f *facts, _ *Config) { f.driver = "tun" },
			"eth0 is a tun and not to be served through AF_XDP: it carries segments of 64 KiB"},
		{"bridge", func(f *facts, _ *Config) { f.driver = "bridge" }, "name one of its ports"},
		{"bond", func(f *facts, _ *Config) { f.driver = "bonding" }, "must be on its members"},
		{"team", func(f *facts, _ *Config) { f.driver = "team" }, "must be on its members"},
		{"vlan", func(f *facts, _ *Config) { f.driver = "802.1Q VLAN Support" }, "with --vlan"},
		{"macvlan", func(f *facts, _ *Config) { f.driver = "macvlan" }, "the netdev below"},
		{"netvsc", func(f *facts, _ *Config) { f.driver = "hv_netvsc" }, "virtual function"},
		{"veth", func(f *facts, _ *Config) { f.driver = "veth" },
			"ethtool -K eth0 tx off\" at both ends"},
		{"no XDP", func(f *facts, _ *Config) { f.features = featureBasic },
			"its driver runs no XDP programs that redirect"},
		{"tags", func(f *facts, _ *Config) { f.stripsVLAN = true }, "ethtool -K eth0 rxvlan off"},
		{"MTU", func(f *facts, _ *Config) { f.mtu = 9000 }, "its MTU is 9000"},
		{"queues", func(_ *facts, c *Config) { c.Queues = 5 },
			"5 queues are wanted, and it receives by 4"},
		{"another program", func(f *facts, _ *Config) { f.program, f.programName = 42, "cil_xdp" },
			`eth0 has the XDP program 42 "cil_xdp"`},
		{"another server", func(f *facts, _ *Config) {
			f.program, f.programName = 42, bpf.ProgramName
		}, "by another process (XDP program 42)"},
	} {
		f, c := good, Config{Config: packet.Config{Device: "eth0"}}
		tt.change(&f, &c)
		err := f.refuseConfig(&c)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	taken := good
	taken.program = 42
	if err := taken.refuseConfig(&Config{Await: true}); err != nil {
		t.Errorf("who awaits the program of its predecessor: %v", err)
	}
	old := facts{name: "eth0", driver: "ice", mtu: maxMTU, queues: 1, featuresKnown: false}
	if err := old.refuseConfig(&Config{}); err != nil {
		t.Errorf("a kernel that does not know of features: %v", err)
	}
}

// TestSend reads and writes the words of a flag.
func TestSend(t *testing.T) {
	for send, word := range map[Send]string{SendSockets: "sockets", SendRings: "rings"} {
		var got Send
		text, err := send.MarshalText()
		if string(text) != word || err != nil || got.UnmarshalText(text) != nil || got != send ||
			send.Validate() != nil {
			t.Errorf("%s: %q", word, text)
		}
	}
	var s Send
	if s.UnmarshalText([]byte("x")) == nil || Send(7).Validate() == nil || Send(7).String() == "" {
		t.Error("a way to send that there is not")
	}
}
