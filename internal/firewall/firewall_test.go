package firewall

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var ports = Ports{Netdev: "eth0", Listen: []uint16{80, 53}, First: 61440, Last: 61695}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestIPTables reads rules as docker, kube-proxy, ufw and people write them.
func TestIPTables(t *testing.T) {
	text := read(t, "iptables-save")
	want := []string{
		"iptables -t filter INPUT DROP is about port 80, and has no effect on what comes by eth0 " +
			"for this server",
		"iptables -t filter ufw-user-input ACCEPT is about port 53, and has no effect on what " +
			"comes by eth0 for this server",
		"iptables -t nat KUBE-POSTROUTING MASQUERADE gives connections random ports, and the " +
			"answers to those from 61440 to 61695 come to this server: limit it to ports below " +
			"61440",
		"iptables -t nat DOCKER DNAT leads port 80 elsewhere, which is not done to what comes by " +
			"eth0: that is this server's",
	}
	if got := fromIPTables("iptables", string(text), ports); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestNftables reads what nft -j prints.
func TestNftables(t *testing.T) {
	text := read(t, "nft.json")
	random := func(where string) string { return ports.randomPorts("nft chain ip " + where) }
	want := []string{
		"nft chain inet fw in is about port 53, and has no effect on what comes by eth0 for this " +
			"server",
		"nft chain ip own pre dnat leads port 80 elsewhere, which is not done to what comes by " +
			"eth0: that is this server's",
		random("own post masquerade"), random("own post2 snat"),
	}
	for asked, want := range map[bool][]string{true: want,
		false: append(want, random("nat post masquerade"))} {
		got, err := fromNftables(text, ports, asked)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("asked iptables %v: %v, %q\nwant %q", asked, err, got, want)
		}
	}
	if _, err := fromNftables([]byte("{"), ports, false); err == nil {
		t.Error("half an object was read")
	}
}
