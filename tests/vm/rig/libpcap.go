package rig

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Libpcap builds Debian 12's libpcap with captures on RDMA devices, which Debian's own package does
// not have (pcap-rdmasniff.c, configure --enable-rdma), once. It returns the path of the shared
// library; programs of Debian 12 can use it in place of their own. It needs make, a C compiler,
// flex, bison, dpkg-dev and libibverbs-dev.
func (c *Cache) Libpcap(ctx context.Context) (string, error) {
	dir := filepath.Join(c.dir, "libpcap-rdma")
	err := once(dir, func(tmp string) error {
		p, err := c.apt(ctx, []string{sourcesOf + "bookworm"})
		if err != nil {
			return err
		}
		src, err := p.source(ctx, "libpcap")
		if err != nil {
			return err
		}
		return buildLibpcap(ctx, src, tmp)
	})
	if err != nil {
		return "", fmt.Errorf("libpcap with RDMA captures: %w", err)
	}
	return filepath.Join(dir, LibpcapName), nil
}

// LibpcapName is the name under which programs of Debian look for libpcap.
const LibpcapName = "libpcap.so.0.8"

// buildLibpcap builds the library in src and leaves it in dir.
func buildLibpcap(ctx context.Context, src, dir string) error {
	for _, argv := range [][]string{
		{"./configure", "--enable-rdma", "--disable-usb", "--disable-dbus", "--disable-bluetooth",
			"--without-libnl"},
		{"make", "shared"},
	} {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = src
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, lastLines(out, 3))
		}
	}
	m, err := filepath.Glob(filepath.Join(src, "libpcap.so.*"))
	if err != nil || len(m) == 0 {
		return fmt.Errorf("make left no shared library in %s", src)
	}
	return keepLibpcap(m[0], filepath.Join(dir, LibpcapName))
}

// keepLibpcap copies the library, if it was built with RDMA captures.
func keepLibpcap(from, to string) error {
	f, err := elf.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	needs, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	if !slices.Contains(needs, "libibverbs.so.1") {
		return fmt.Errorf("%s does not use libibverbs: install libibverbs-dev", filepath.Base(from))
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
