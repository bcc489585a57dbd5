package rig

import (
	"context"
	"fmt"
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

// userPackages are the packages of programs that were not written for the model.
var userPackages = []string{"dpdk-dev", "iperf3", "tcpdump"}

// UserTools fetches DPDK's testpmd with the driver for the NIC, iperf3 and tcpdump, together with
// Tools, once.
func (c *Cache) UserTools(ctx context.Context) (*Tools, error) {
	root, err := c.tree(ctx, "users-"+strings.Join(userPackages, "-"), "", []string{"bookworm"},
		slices.Concat(userPackages, toolPackages)...)
	return &Tools{root: root,
		programs: slices.Concat([]string{"usr/bin/dpdk-testpmd", "usr/bin/iperf3",
			"usr/bin/tcpdump"}, toolPrograms),
		plugins: []string{"librte_net_mlx5.so.23", "librte_common_mlx5.so.23",
			"librte_bus_pci.so.23", "librte_bus_auxiliary.so.23", "librte_mempool_ring.so.23"},
	}, err
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
	mlx5Driver = "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so"
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

// pack adds the programs to /bin, every library they need to a directory that the loader searches,
// and libmlx5 where libibverbs expects it.
func (t *Tools) pack(add func(guest, host string, mode os.FileMode) error) error {
	programs := []string{filepath.Join(t.root, mlx5Driver)}
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
	if err := add("/"+mlx5Driver, filepath.Join(t.root, mlx5Driver), 0o755); err != nil {
		return err
	}
	return add("/"+mlx5Config, filepath.Join(t.root, mlx5Config), 0o644)
}
