package rig

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writeFiles makes files below a directory, each with its path as text.
func writeFiles(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestToolsOfSuite: the plugins and versions of a suite are those that its packages have.
func TestToolsOfSuite(t *testing.T) {
	root := t.TempDir()
	const dir = "usr/lib/x86_64-linux-gnu/"
	writeFiles(t, root, dir+"librte_net_mlx5.so.9", dir+"librte_net_mlx5.so.26",
		dir+"librte_net_mlx5.so.26.0", dir+"librte_net_mlx5.so", dir+"librte_net_mlx5.so.note")
	plugin, err := newestLibrary(root, "librte_net_mlx5.so")
	if err != nil || plugin != "librte_net_mlx5.so.26" {
		t.Errorf("%s, %v", plugin, err)
	}
	if _, err := newestLibrary(root, "librte_bus_pci.so"); err == nil {
		t.Error("a library that no package has")
	}
	list := listPackages([]string{"/a/ethtool_1%3a7.2-1_amd64.deb",
		"/a/dpdk-dev_25.11.4-1_all.deb"})
	if err := os.WriteFile(filepath.Join(root, packageList), list, 0o644); err != nil {
		t.Fatal(err)
	}
	tools := &Tools{root: root, plugins: []string{plugin}}
	for pkg, want := range map[string]string{"ethtool": "1:7.2-1", "dpdk-dev": "25.11.4-1",
		"dpdk": ""} {
		if got := tools.Version(pkg); got != want {
			t.Errorf("%s %q, want %q", pkg, got, want)
		}
	}
	if p, none := tools.Plugin("librte_net_mlx5.so"), tools.Plugin("librte_net"); p != plugin ||
		none != "" {
		t.Errorf("plugins %q, %q", p, none)
	}
}

// TestPackTree: a directory is added whole, compressed files as what they hold.
func TestPackTree(t *testing.T) {
	root := t.TempDir()
	writeFiles(t, root, "a.py", "sub/b.so")
	var text bytes.Buffer
	z := gzip.NewWriter(&text)
	z.Write([]byte("plain"))
	z.Close()
	if err := os.WriteFile(filepath.Join(root, "sub/c.py.gz"), text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	libraries, err := packTree(root, "/to", func(guest, host string, _ os.FileMode) error {
		b, err := os.ReadFile(host)
		got[guest] = string(b)
		return err
	})
	if err != nil || !slices.Equal(libraries, []string{filepath.Join(root, "sub/b.so")}) {
		t.Errorf("libraries %q, %v", libraries, err)
	}
	if len(got) != 3 || got["/to/a.py"] != "a.py" || got["/to/sub/c.py"] != "plain" {
		t.Errorf("%q", got)
	}
}
