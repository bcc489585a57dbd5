package unmodified

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestReadConfig(t *testing.T) {
	c, err := ReadConfig([]string{"PATH=/bin", "RDMA_NETSTACK_DEVICE=eth0",
		"RDMA_NETSTACK_ADDRESS=192.0.2.10/24,2001:db8::10/64", "RDMA_NETSTACK_LISTEN=80,443/tcp",
		"RDMA_NETSTACK_KERNEL=9090,53/udp,10.0.0.0/8,192.0.2.7", "RDMA_NETSTACK_PID=1"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Stack.NIC.Device != "eth0" || len(c.Stack.Addresses) != 2 || c.Stack.Host ||
		c.Stack.Name != "eth0" {
		t.Errorf("stack: %+v", c.Stack)
	}
	if len(c.Listen) != 2 || c.Listen[0] != (Port{"", 80}) || c.Listen[1] != (Port{"tcp", 443}) {
		t.Errorf("listen: %v", c.Listen)
	}
	if len(c.KernelPorts) != 2 || c.KernelPorts[1] != (Port{"udp", 53}) ||
		len(c.KernelPrefixes) != 2 ||
		c.KernelPrefixes[1] != netip.MustParsePrefix("192.0.2.7/32") {
		t.Errorf("kernel: %v %v", c.KernelPorts, c.KernelPrefixes)
	}
	if c, err := ReadConfig([]string{"PATH=/bin"}); c != nil || err != nil {
		t.Errorf("nothing set: %v, %v", c, err)
	}
}

func TestConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slice.conf")
	text := "# a comment\n\ndevice = eth0\nADDRESS=host\nRDMA_NETSTACK_LOG=off\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig([]string{"RDMA_NETSTACK_CONFIG=" + path, "RDMA_NETSTACK_DEVICE=eth1"})
	if err != nil || c.Stack.NIC.Device != "eth1" || !c.Stack.Host || !c.Silent {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestConfigRefused: one sentence each, which names the variable.
func TestConfigRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "slice.conf")
	if err := os.WriteFile(file, []byte("device=eth0\nadress=host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte("chain input {\nallow\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, variables, want string }{
		{"no file of rules", "DEVICE=eth0 ADDRESS=host FILTER=/no/such",
			"RDMA_NETSTACK_FILTER=/no/such: open /no/such"},
		{"a wrong rule", "DEVICE=eth0 ADDRESS=host FILTER=" + rules, `: line 2: "allow": want ip`},
		{"a typo", "DEVICE=eth0 ADRESS=host", "RDMA_NETSTACK_ADRESS is not known"},
		{"a typo in a file", "CONFIG=" + file, file + ", line 2: ADRESS is not known"},
		{"no file", "CONFIG=/no/such", "RDMA_NETSTACK_CONFIG: open /no/such"},
		{"no device", "ADDRESS=host", "RDMA_NETSTACK_DEVICE is missing"},
		{"no address", "DEVICE=eth0", "RDMA_NETSTACK_ADDRESS is missing"},
		{"not an address", "DEVICE=eth0 ADDRESS=here", "RDMA_NETSTACK_ADDRESS=here: want host"},
		{"host and another", "DEVICE=eth0 ADDRESS=host,192.0.2.1/24", "leave out the others"},
		{"kernel beside a MAC", "DEVICE=eth0 ADDRESS=192.0.2.1/24 ON_ERROR=kernel",
			"is for RDMA_NETSTACK_ADDRESS=host"},
		{"host's VLAN", "DEVICE=eth0 ADDRESS=host VLAN=7", "leave out GATEWAY, VLAN and MAC"},
		{"VLAN", "DEVICE=eth0 ADDRESS=host VLAN=4095", "want 1 to 4094"},
		{"port", "DEVICE=eth0 ADDRESS=host LISTEN=http", "LISTEN=http: want ports"},
		{"protocol", "DEVICE=eth0 ADDRESS=host LISTEN=80/sctp", "LISTEN=80/sctp: want ports"},
		{"prefix", "DEVICE=eth0 ADDRESS=host KERNEL=10.0.0.0/33", "want ports and prefixes"},
		{"empty", "DEVICE= ADDRESS=host", "RDMA_NETSTACK_DEVICE=: want"},
		{"wire", "DEVICE=eth0 ADDRESS=192.0.2.1/24 SIM_WIRE=tap:x", "are for RDMA_NETSTACK_DEVICE"},
		{"log", "DEVICE=eth0 ADDRESS=host LOG=loud", "want off, error"},
		{"admin", "DEVICE=eth0 ADDRESS=host ADMIN=9100", "want ADDRESS:PORT"},
	} {
		var environ []string
		for _, v := range strings.Fields(tt.variables) {
			environ = append(environ, Prefix+v)
		}
		_, err := ReadConfig(environ)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func FuzzConfigFile(f *testing.F) {
	f.Add("DEVICE=eth0\nADDRESS=host")
	f.Add("LISTEN=80,\nKERNEL=::/0")
	f.Add("ADDRESS=192.0.2.1/24\nMAC=02:00:00:00:00:01\nFAULTS==")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadConfig([]string{"RDMA_NETSTACK_CONFIG=" + path})
		if c != nil && err == nil && c.Stack.NIC.Device == "" {
			t.Errorf("%q: no device", text)
		}
	})
}

// TestSettingsDocumented: the table of docs/unmodified.md has each variable that is read, and no
// page names another.
func TestSettingsDocumented(t *testing.T) {
	known := map[string]bool{configKey: true}
	for _, s := range settings() {
		known[s.key] = true
	}
	text, err := os.ReadFile("../docs/unmodified.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`"+Prefix) {
			continue
		}
		for name := range strings.FieldsFuncSeq(cells[1], func(r rune) bool {
			return r == ' ' || r == ',' || r == '`'
		}) {
			key := strings.TrimPrefix(strings.TrimPrefix(name, Prefix), "_")
			if documented[key] = true; !known[key] {
				t.Errorf("docs/unmodified.md has %s%s, which nothing reads", Prefix, key)
			}
		}
	}
	for key := range known {
		if !documented[key] {
			t.Errorf("docs/unmodified.md does not have %s%s", Prefix, key)
		}
	}
	var pages []string
	for _, pattern := range []string{"../README.md", "../docs/*.md", "../deploy/unmodified/*",
		"../cmd/rdma-netstack/unmodified.go", "../examples/*/*"} {
		names, _ := filepath.Glob(pattern)
		pages = append(pages, names...)
	}
	named := regexp.MustCompile(Prefix + "[A-Z_]*[A-Z]")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			continue // a directory
		}
		for _, name := range named.FindAllString(string(text), -1) {
			if !known[strings.TrimPrefix(name, Prefix)] {
				t.Errorf("%s names %s, which nothing reads", page, name)
			}
		}
	}
}
