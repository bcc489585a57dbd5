package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel is one stock kernel: its boot image and the modules the tests load, in order.
type Kernel struct {
	Version string   // as in the tests: "6.1", "6.12"
	Release string   // uname -r
	Image   string   // host path of vmlinuz
	Modules []string // host paths of uncompressed modules, dependencies first
	// Sets are more modules, by the name under which the guest loads them, likewise.
	Sets map[string][]string
}

// kernelSource says which packages hold a kernel. Debian splits image and modules from 7.x on.
type kernelSource struct {
	suites   []string
	packages []string // patterns of package names; the newest of each is taken
}

// kernelSources are the kernels the tests know, by version.
var kernelSources = map[string]kernelSource{
	"5.10": {[]string{"bullseye", "bullseye-security"},
		[]string{`linux-image-5\.10\.0-[0-9]+-amd64`}},
	"6.1": {[]string{"bookworm", "bookworm-security"},
		[]string{`linux-image-6\.1\.0-[0-9]+-amd64`}},
	"6.12": {[]string{"bookworm", "bookworm-backports"},
		[]string{`linux-image-6\.12\.[0-9]+\+deb12-amd64`}},
	"7.2": {[]string{"trixie", "trixie-backports"},
		[]string{`linux-binary-7\.2\.[0-9]+\+deb13-amd64`,
			`linux-modules-7\.2\.[0-9]+\+deb13-amd64`}},
	"7.3": {[]string{"trixie", "trixie-backports"},
		[]string{`linux-binary-7\.3\.[0-9]+\+deb13-amd64`,
			`linux-modules-7\.3\.[0-9]+\+deb13-amd64`}},
}

// wantedModules are the modules that the guest loads, together with what they depend on.
var wantedModules = []string{"mlx5_core", "mlx5_ib", "ib_uverbs"}

// Kernel fetches the kernel of that version, once, and returns the paths of its parts.
func (c *Cache) Kernel(ctx context.Context, version string) (*Kernel, error) {
	src, ok := kernelSources[version]
	if !ok {
		return nil, fmt.Errorf("no kernel %q is known: choose one of %s", version,
			strings.Join(KernelVersions(), ", "))
	}
	dir := filepath.Join(c.dir, "kernel-"+version)
	if err := once(dir, func(tmp string) error {
		return c.fetchKernel(ctx, tmp, src, wantedModules)
	}); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", version, err)
	}
	return openKernel(dir, version)
}

// AddModules fetches more modules of k with what they depend on, once, and adds them as a set.
func (c *Cache) AddModules(ctx context.Context, k *Kernel, set string, modules ...string) error {
	dir := filepath.Join(c.dir, "kernel-"+k.Version+"-"+set)
	if err := once(dir, func(tmp string) error {
		return c.fetchKernel(ctx, tmp, kernelSources[k.Version], modules)
	}); err != nil {
		return fmt.Errorf("modules %s of kernel %s: %w", set, k.Version, err)
	}
	more, err := openKernel(dir, k.Version)
	if err != nil {
		return err
	}
	if more.Release != k.Release {
		return fmt.Errorf("modules %s are of kernel %s, not %s: remove %s", set, more.Release,
			k.Release, filepath.Join(c.dir, "kernel-"+k.Version+"*"))
	}
	if k.Sets == nil {
		k.Sets = map[string][]string{}
	}
	k.Sets[set] = more.Modules
	return nil
}

// KernelVersions lists the known kernels, oldest first.
func KernelVersions() []string { return []string{"5.10", "6.1", "6.12", "7.2", "7.3"} }

// fetchKernel downloads and unpacks a kernel and leaves vmlinuz, release, order and the modules in
// dir.
func (c *Cache) fetchKernel(ctx context.Context, dir string, src kernelSource,
	modules []string) error {
	p, err := c.apt(ctx, src.suites)
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	for _, pattern := range src.packages {
		name, err := p.newest(ctx, pattern)
		if err != nil {
			return err
		}
		deb, err := p.one(ctx, name)
		if err != nil {
			return err
		}
		if err := unpack(ctx, root, deb); err != nil {
			return err
		}
		os.Remove(deb)
	}
	if err := keepKernel(ctx, root, dir, modules); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// keepKernel moves what the guest needs from the unpacked packages into dir.
func keepKernel(ctx context.Context, root, dir string, modules []string) error {
	release, image, err := bootImage(root)
	if err != nil {
		return err
	}
	if err := os.Rename(image, filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	order, err := moduleClosure(ctx, root, dir, modules)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "order"),
		[]byte(strings.Join(order, "\n")), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "release"), []byte(release), 0o644)
}

// bootImage finds the kernel image and its release: boot/vmlinuz-RELEASE up to 6.x,
// modules/RELEASE/vmlinuz from 7.x.
func bootImage(root string) (release, image string, err error) {
	if m, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*")); len(m) == 1 {
		return strings.TrimPrefix(filepath.Base(m[0]), "vmlinuz-"), m[0], nil
	}
	if m, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "modules", "*",
		"vmlinuz")); len(m) == 1 {
		return filepath.Base(filepath.Dir(m[0])), m[0], nil
	}
	return "", "", fmt.Errorf("no boot image in the kernel package")
}

// moduleClosure decompresses the wanted modules and what they depend on into dir and returns their
// names in load order.
func moduleClosure(ctx context.Context, root, dir string, wanted []string) ([]string, error) {
	files, err := moduleFiles(root)
	if err != nil {
		return nil, err
	}
	var order []string
	seen := map[string]bool{}
	var load func(name string) error
	load = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := files[name]
		if !ok {
			return nil // built into the kernel
		}
		image, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		deps, err := moduleDepends(image)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, d := range deps {
			if err := load(d); err != nil {
				return err
			}
		}
		order = append(order, name)
		return os.WriteFile(filepath.Join(dir, name+".ko"), image, 0o644)
	}
	for _, m := range wanted {
		if err := load(m); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleFiles maps module names, with underscores, to files.
func moduleFiles(root string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	return files, err
}

// readModule returns a module's ELF image, decompressed.
func readModule(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		return exec.CommandContext(ctx, "xz", "-dc", path).Output()
	}
	return os.ReadFile(path)
}

func openKernel(dir, version string) (*Kernel, error) {
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return nil, err
	}
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return nil, err
	}
	k := &Kernel{Version: version, Release: string(release), Image: filepath.Join(dir, "vmlinuz")}
	for _, m := range strings.Fields(string(order)) {
		k.Modules = append(k.Modules, filepath.Join(dir, m+".ko"))
	}
	return k, nil
}
