// Package arm64 runs tests of the driver on an emulated arm64 processor: its barriers, its
// assembly, its weaker memory order.
package arm64

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// packages are those whose tests run: all that access memory shared with the NIC, and the packages
// above them.
var packages = []string{"internal/mmio", "dv/mlx5", "dv/uverbs", "simnic", "dv", "link/rdma"}

// bootTime is enough for an emulated machine while other tests run.
const bootTime = 20 * time.Minute

func TestDriver(t *testing.T) {
	need.Long(t, "boots an emulated machine")
	need.That(t, "arm64", wanted())
	ctx, cancel := context.WithTimeout(context.Background(), bootTime)
	defer cancel()
	cache, err := rig.OpenCache()
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	m, err := cache.ARM64(ctx)
	need.That(t, "packages", err)
	initrd := filepath.Join(t.TempDir(), "initrd")
	if err := rig.Initramfs(initrd, &rig.Kernel{}, nil,
		build(t, "build", "init", "./guest"), files(t)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, err := m.Command(ctx, initrd, 2048).CombinedOutput()
	t.Logf("linux %s, %v:\n%s", m.Release, time.Since(start).Round(time.Second), out)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if !bytes.Contains(out, []byte("guest: "+name(p)+".test: ok")) {
			t.Errorf("%s failed or did not run", p)
		}
	}
}

// wanted reports whether the tests on the emulated processor, which take minutes, are requested.
func wanted() error {
	if os.Getenv("ARM64") == "" {
		return errors.New("an emulated processor takes minutes: make test-arm64")
	}
	return nil
}

func name(pkg string) string { return strings.ReplaceAll(pkg, "/", "_") }

// files are the test programs with their testdata and, for tests that read it, source, by path in
// the guest.
func files(t *testing.T) map[string]string {
	all := map[string]string{}
	for _, p := range packages {
		dir := "/tests/" + name(p)
		all[dir+"/"+name(p)+".test"] = build(t, "test", name(p), "../../../"+p)
		root := filepath.Join("../../..", p)
		add := func(path string, d fs.DirEntry, err error) error {
			if rel, _ := filepath.Rel(root, path); err == nil && !d.IsDir() {
				all[dir+"/"+rel] = path
			}
			return nil // a package may have no testdata
		}
		filepath.WalkDir(filepath.Join(root, "testdata"), add)
		sources, _ := filepath.Glob(filepath.Join(root, "abi_*.go"))
		for _, s := range sources {
			all[dir+"/"+filepath.Base(s)] = s
		}
	}
	return all
}

// build makes a static arm64 binary: a program ("build") or the tests of a package ("test").
func build(t *testing.T, how, out, pkg string) string {
	t.Helper()
	out = filepath.Join(t.TempDir(), out)
	args := []string{how, "-o", out}
	if how == "test" {
		args = append(args, "-c")
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s %s: %v\n%s", how, pkg, err, b)
	}
	return out
}
