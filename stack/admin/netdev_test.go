package admin

import (
	"os"
	"path/filepath"
	"testing"
)

// TestNetdevOf reads the counters as sysfs has them; without one of them there is no netdev.
func TestNetdevOf(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "eth0", "statistics")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"rx_packets": "1\n", "rx_bytes": "2\n",
		"tx_packets": "3\n", "tx_bytes": "18446744073709551615\n"} {
		if netdevOf(root, "eth0") != nil {
			t.Errorf("without %s", file)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := netdevOf(root, "eth0"); got == nil || *got != (Traffic{"eth0", 1, 2, 3, 1<<64 - 1}) {
		t.Errorf("%+v", got)
	}
	if netdevOf(root, "eth1") != nil || netdevOf(root, "") != nil {
		t.Error("another interface has counters")
	}
}
