package rig

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Tools is an unpacked set of programs that test the model from inside a guest: rdma-core's,
// iproute2's, ping.
type Tools struct {
	root     string
	programs []string          // by path below root
	plugins  []string          // shared libraries that programs open by name
	named    map[string]string // programs with more than one name: path below root by name
	trees    map[string]string // directories packed whole: path in the guest by that below root
}

// toolPrograms are the programs put into the guest, by path below the root of their packages.
var toolPrograms = []string{
	"usr/bin/ibv_devinfo", "usr/bin/ibv_devices", "usr/bin/raw_ethernet_bw",
	"usr/bin/raw_ethernet_lat",
	"bin/ip", "bin/ping", "sbin/ethtool", "bin/rdma", "sbin/devlink",
}

// toolPackages are the packages of toolPrograms.
var toolPackages = []string{"ibverbs-utils", "ibverbs-providers", "perftest", "iproute2",
	"iputils-ping", "ethtool"}

// Tools fetches Debian 12's rdma-core, perftest and network tools, once.
func (c *Cache) Tools(ctx context.Context) (*Tools, error) {
	root, err := c.tree(ctx, "tools", "", []string{"bookworm"}, toolPackages...)
	return &Tools{root: root, programs: toolPrograms}, err
}

// userPackages names the packages of programs that were not written for the model, and of a
// debugger for them.
var userPackages = []string{"dpdk-dev", "iperf3", "tcpdump", "sockperf", "gdb-minimal"}

// userPlugins names what testpmd opens by name, without the version of their interface.
var userPlugins = []string{"librte_net_mlx5.so", "librte_common_mlx5.so", "librte_bus_pci.so",
	"librte_bus_auxiliary.so", "librte_mempool_ring.so"}

// UserTools fetches DPDK's testpmd with the driver for the NIC, iperf3, tcpdump, sockperf and gdb
// of a suite of Debian, "bookworm" or later, together with Tools of the same suite, once.
func (c *Cache) UserTools(ctx context.Context, suite string) (*Tools, error) {
	root, err := c.tree(ctx, "users-"+suite+"-"+strings.Join(userPackages, "-"), "",
		[]string{suite}, slices.Concat(userPackages, toolPackages)...)
	if err != nil {
		return nil, err
	}
	t := &Tools{root: root, programs: slices.Concat([]string{"usr/bin/dpdk-testpmd",
		"usr/bin/iperf3", "usr/bin/tcpdump", "usr/bin/sockperf", "usr/bin/gdb",
		"usr/bin/raw_ethernet_fs_rate"}, toolPrograms)}
	for _, name := range userPlugins {
		plugin, err := newestLibrary(root, name)
		if err != nil {
			return nil, err
		}
		t.plugins = append(t.plugins, plugin)
	}
	return t, nil
}

// Command returns how a program is run on this machine, with its own libraries, up to its
// arguments.
func (t *Tools) Command(name string) (argv []string, err error) {
	program, err := t.find(name)
	if err != nil {
		return nil, err
	}
	loader, err := findLibrary(t.root, "ld-linux-x86-64.so.2")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, d := range libraryDirs {
		dirs = append(dirs, filepath.Join(t.root, d))
	}
	return []string{loader, "--library-path", strings.Join(dirs, ":"), program}, nil
}

// Plugin returns the file name of a plugin, which a program opens by it, with its version; "" if
// there is none. Its name is that without a version.
func (t *Tools) Plugin(name string) string {
	for _, p := range t.plugins {
		if strings.HasPrefix(p, name+".") {
			return p
		}
	}
	return ""
}

// Version returns the version of an unpacked package, "" if it was not unpacked.
func (t *Tools) Version(pkg string) string {
	list, _ := os.ReadFile(filepath.Join(t.root, packageList))
	for line := range strings.Lines(string(list)) {
		if name, version, _ := strings.Cut(strings.TrimSpace(line), " "); name == pkg {
			return version
		}
	}
	return ""
}

// verbsTestsPackages names the packages of rdma-core's tests, of what those of DEVX build frames
// with, and of programs that they run.
var verbsTestsPackages = []string{"python3-pyverbs", "python3-scapy", "busybox-static"}

// VerbsTestsDir names where the guest has rdma-core's own tests, and python3 looks for modules.
const VerbsTestsDir = "/usr/lib/rdma-core-tests"

// VerbsTests fetches rdma-core's own tests with Python, of a suite of Debian, together with Tools
// of the same suite, once. Debian puts them beside the documentation.
func (c *Cache) VerbsTests(ctx context.Context, suite string) (*Tools, error) {
	root, err := c.tree(ctx, "verbs-tests-"+suite+"-"+strings.Join(verbsTestsPackages, "-"), "",
		[]string{suite}, slices.Concat(verbsTestsPackages, toolPackages)...)
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/python3.*"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("%d versions of Python in %s: %v", len(found), root, err)
	}
	library := filepath.Base(found[0])
	return &Tools{root: root, programs: toolPrograms,
		named: map[string]string{"python3": "usr/bin/" + library, "ls": "bin/busybox",
			"cat": "bin/busybox"},
		trees: map[string]string{
			"usr/lib/" + library:            "/usr/lib/" + library,
			"usr/lib/python3/dist-packages": "/usr/lib/python3/dist-packages",
			"usr/share/doc/rdma-core/tests": VerbsTestsDir,
		}}, nil
}

// hostPackages are the packages of programs that a host with an address from a DHCP server runs.
var hostPackages = []string{"dnsmasq-base", "busybox-static"}

// HostTools fetches a DHCP server, a client and a shell for the client's script, together with
// Tools, once.
func (c *Cache) HostTools(ctx context.Context) (*Tools, error) {
	root, err := c.tree(ctx, "host-"+strings.Join(hostPackages, "-"), "", []string{"bookworm"},
		slices.Concat(hostPackages, toolPackages)...)
	return &Tools{root: root, programs: append([]string{"usr/sbin/dnsmasq"}, toolPrograms...),
		named: map[string]string{"sh": "bin/busybox", "udhcpc": "bin/busybox"}}, err
}

// find returns the host path of a program in any of the directories that packages use (Debian is
// moving /bin to /usr/bin).
func (t *Tools) find(name string) (string, error) {
	for _, d := range []string{"bin", "usr/bin", "sbin", "usr/sbin"} {
		p := filepath.Join(t.root, d, path.Base(name))
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("program %s is in none of the packages", name)
}

// mlx5Driver is libmlx5, which libibverbs opens at run time, and the file that tells libibverbs of
// it.
const (
	mlx5Driver = "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav*.so" // its interface's version
	mlx5Config = "etc/libibverbs.d/mlx5.driver"
)

// Initramfs packs a static init, other files of the host by guest path, the kernel's modules (in
// /mod, with /mod/order and a file of the name of each set) and, if tools is not nil, its programs
// with their libraries, and writes the archive to out. It is not compressed: decompression would
// take seconds on the guest's emulated processor.
func Initramfs(out string, k *Kernel, tools *Tools, init string, extra map[string]string) error {
	files := map[string]archiveFile{"/dev": dir(), "/proc": dir(), "/sys": dir(),
		"/tmp": dir(), "/run": dir()}
	add := func(guest, host string, mode os.FileMode) error {
		b, err := os.ReadFile(host)
		files[guest] = archiveFile{mode: mode, data: b}
		return err
	}
	if err := add("/init", init, 0o755); err != nil {
		return err
	}
	for guest, host := range extra {
		if err := add(guest, host, 0o755); err != nil {
			return err
		}
	}
	sets := maps.Clone(k.Sets)
	if sets == nil {
		sets = map[string][]string{}
	}
	sets["order"] = k.Modules
	for name, modules := range sets {
		var order []string
		for _, m := range modules {
			order = append(order, filepath.Base(m))
			if err := add("/mod/"+filepath.Base(m), m, 0o644); err != nil {
				return err
			}
		}
		files["/mod/"+name] = archiveFile{mode: 0o644, data: []byte(strings.Join(order, "\n"))}
	}
	if tools != nil {
		if err := tools.pack(add); err != nil {
			return err
		}
	}
	return os.WriteFile(out, newc(files), 0o644)
}

func dir() archiveFile { return archiveFile{mode: os.ModeDir | 0o755} }

// The path of Debian's dynamic loader, and the directories that it searches for libraries.
const loaderDir, libraryDir = "/lib64/", "/lib/x86_64-linux-gnu/"

// addFile adds a file of the host to the guest.
type addFile func(guest, host string, mode os.FileMode) error

// packTree adds a directory, and returns the shared libraries in it. Compressed files are added
// without compression, from copies beside them; links that lead nowhere are left out.
func packTree(from, to string, add addFile) (libraries []string, err error) {
	err = filepath.WalkDir(from, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if st, err := os.Stat(name); err != nil || st.IsDir() {
			return nil
		}
		if plain, ok := strings.CutSuffix(name, ".gz"); ok {
			if err := gunzip(name, plain); err != nil {
				return err
			}
			name = plain
		}
		if strings.HasSuffix(name, ".so") {
			libraries = append(libraries, name)
		}
		return add(to+strings.TrimPrefix(name, from), name, 0o755)
	})
	return libraries, err
}

// gunzip writes what a compressed file holds.
func gunzip(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, text, 0o644)
}

// pack adds the programs to /bin, every library they need to a directory that the loader searches,
// and libmlx5 where libibverbs expects it.
func (t *Tools) pack(add addFile) error {
	drivers, err := filepath.Glob(filepath.Join(t.root, mlx5Driver))
	if err != nil || len(drivers) != 1 {
		return fmt.Errorf("%d files %s in %s: %v", len(drivers), mlx5Driver, t.root, err)
	}
	programs := drivers
	for _, name := range t.plugins {
		p, err := findLibrary(t.root, name)
		if err != nil {
			return err
		}
		programs = append(programs, p)
		if err := add(libraryDir+name, p, 0o755); err != nil {
			return err
		}
	}
	for _, name := range t.programs {
		p, err := t.find(name)
		if err != nil {
			return err
		}
		programs = append(programs, p)
		if err := add("/bin/"+path.Base(name), p, 0o755); err != nil {
			return err
		}
	}
	for name, path := range t.named {
		p, err := t.find(path)
		if err != nil {
			return err
		}
		if err := add("/bin/"+name, p, 0o755); err != nil {
			return err
		}
	}
	for from, to := range t.trees {
		found, err := packTree(filepath.Join(t.root, from), to, add)
		if err != nil {
			return err
		}
		programs = append(programs, found...)
	}
	libs, err := neededLibraries(t.root, programs...)
	if err != nil {
		return err
	}
	for name, p := range libs {
		dir := libraryDir
		if strings.HasPrefix(name, "ld-linux") {
			dir = loaderDir
		}
		if err := add(dir+name, p, 0o755); err != nil {
			return err
		}
	}
	if err := add(strings.TrimPrefix(drivers[0], t.root), drivers[0], 0o755); err != nil {
		return err
	}
	return add("/"+mlx5Config, filepath.Join(t.root, mlx5Config), 0o644)
}
