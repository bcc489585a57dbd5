package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ARM64 is an emulated arm64 machine: a stock kernel, and a QEMU for it. It has no software
// ConnectX: it runs programs on another processor.
type ARM64 struct {
	Release            string // uname -r
	image, qemu, tools string
}

// arm64Kernel is Debian 12's own.
const arm64Kernel = `linux-image-6\.1\.0-[0-9]+-arm64`

// ARM64 fetches kernel and QEMU, once.
func (c *Cache) ARM64(ctx context.Context) (*ARM64, error) {
	dir := filepath.Join(c.dir, "kernel-arm64")
	if err := once(dir, func(tmp string) error { return c.fetchARM64(ctx, tmp) }); err != nil {
		return nil, fmt.Errorf("arm64 kernel: %w", err)
	}
	root, err := c.tree(ctx, "qemu-arm64", "", []string{"bookworm"}, "qemu-system-arm")
	if err != nil {
		return nil, err
	}
	loader, err := findLibrary(root, "ld-linux-x86-64.so.2")
	if err != nil {
		return nil, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	return &ARM64{Release: string(release), image: filepath.Join(dir, "vmlinuz"),
		qemu: root, tools: loader}, err
}

// fetchARM64 leaves vmlinuz and release in dir. It needs no modules: all drivers needed are built
// in.
func (c *Cache) fetchARM64(ctx context.Context, dir string) error {
	p, err := c.apt(ctx, []string{"bookworm", "bookworm-security"}, "-o", "APT::Architecture=arm64",
		"-o", "APT::Architectures=arm64")
	if err != nil {
		return err
	}
	name, err := p.newest(ctx, arm64Kernel)
	if err != nil {
		return err
	}
	deb, err := p.one(ctx, name)
	if err != nil {
		return err
	}
	defer os.Remove(deb)
	root := filepath.Join(dir, "root")
	if err := unpack(ctx, root, deb); err != nil {
		return err
	}
	release, image, err := bootImage(root)
	if err != nil {
		return err
	}
	if err := os.Rename(image, filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "release"), []byte(release), 0o644); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// Command is the QEMU command line for two processors and the given MiB of memory. The guest's
// console is its standard output.
func (m *ARM64) Command(ctx context.Context, initrd string, memory int) *exec.Cmd {
	var lib []string
	for _, d := range libraryDirs {
		lib = append(lib, filepath.Join(m.qemu, d))
	}
	return exec.CommandContext(ctx, m.tools,
		"--library-path", strings.Join(lib, ":"),
		filepath.Join(m.qemu, "usr/bin/qemu-system-aarch64"),
		"-L", filepath.Join(m.qemu, "usr/share/qemu"), "-accel", "tcg,thread=multi", "-M",
		"virt", "-cpu", "neoverse-n1",
		"-smp", "2", "-m", fmt.Sprintf("%dM", memory), "-nodefaults", "-no-user-config",
		"-no-reboot", "-display", "none",
		"-serial", "stdio", "-kernel", m.image, "-initrd", initrd, "-append",
		"console=ttyAMA0 panic=-1 quiet")
}
