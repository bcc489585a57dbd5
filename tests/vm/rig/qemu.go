package rig

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// QEMU is an unpacked qemu-system-x86 that has vfio-user-pci (10.1 or later).
type QEMU struct{ root, loader string }

// QEMU fetches Debian's backported QEMU, once. It runs from the directory where it was unpacked,
// through its own dynamic loader.
func (c *Cache) QEMU(ctx context.Context) (*QEMU, error) {
	root, err := c.tree(ctx, "qemu", "trixie-backports",
		[]string{"trixie", "trixie-backports"}, "qemu-system-x86")
	if err != nil {
		return nil, err
	}
	loader, err := findLibrary(root, "ld-linux-x86-64.so.2")
	if err != nil {
		return nil, err
	}
	q := &QEMU{root: root, loader: loader}
	out, err := q.exec(ctx, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("QEMU from %s does not run: %w", root, err)
	}
	return q, checkVersion(string(out))
}

// The first QEMU with a vfio-user client.
const qemuMajor, qemuMinor = 10, 1

var qemuVersion = regexp.MustCompile(`version (\d+)\.(\d+)`)

// checkVersion checks the version that qemu --version prints.
func checkVersion(said string) error {
	m := qemuVersion.FindStringSubmatch(said)
	if m == nil {
		return fmt.Errorf("QEMU does not say its version: %q", lastLines([]byte(said), 1))
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < qemuMajor || major == qemuMajor && minor < qemuMinor {
		return fmt.Errorf(
			"QEMU is %d.%d, and only %d.%d and later can drive a device over vfio-user",
			major, minor, qemuMajor, qemuMinor)
	}
	return nil
}

// exec is the command that runs QEMU with these arguments, from the directory where it was unpacked
// and through its own loader.
func (q *QEMU) exec(ctx context.Context, args ...string) *exec.Cmd {
	lib := make([]string, 0, len(libraryDirs))
	for _, d := range libraryDirs {
		lib = append(lib, filepath.Join(q.root, d))
	}
	args = append([]string{"--library-path", strings.Join(lib, ":"),
		filepath.Join(q.root, "usr/bin/qemu-system-x86_64")}, args...)
	cmd := exec.CommandContext(ctx, q.loader, args...)
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(q.root,
		"usr/lib/x86_64-linux-gnu/qemu"))
	return cmd
}

// Machine is one virtual machine to boot.
type Machine struct {
	Kernel *Kernel
	Initrd string // path of the cpio archive
	Socket string // unix socket of the vfio-user device; empty: no device
	Append string // more kernel command line
	Memory int    // MiB
	CPUs   int
	// Count makes the machine's clock count instructions: [NanosPerInstruction] each, whatever else
	// the host has to do. Its processors then take turns.
	Count  bool
	Serial string // unix socket path for a second serial line (ttyS1); empty: none
	// Monitor names the unix socket by which QEMU's monitor is asked; empty: none.
	Monitor string
	// Standby is a TAP behind a virtio netdev with the MAC of StandbyMAC, which the guest's
	// net_failover pairs with a netdev of the same MAC, or with a MAC of its own where that is nil;
	// nil: none. The caller's.
	Standby    *os.File
	StandbyMAC net.HardwareAddr
	// StandbyDevice is QEMU's name of the second netdev's device, with options; "": that of virtio.
	StandbyDevice string

	Log *Log // what the model logs, for error messages; nil: nothing
}

// NanosPerInstruction says how long an instruction takes by the clock of a machine that counts
// them.
const NanosPerInstruction = 4

// commandLine goes to every guest kernel. Without tsc=nowatchdog a guest of Linux 7.1 or later may
// hang as it boots: the clocksource watchdog, which is a timer of CPU 0, waits with interrupts off
// for an answer of CPU 1, which waits in stop_machine, with interrupts off, for CPU 0; as long as
// the clock in use is jiffies, the watchdog's limit of 50 us never ends (watchdog_wait_seq in
// kernel/time/clocksource.c). That takes a CPU 0 which the host did not run for a moment, as on a
// busy machine: one boot of a hundred.
const commandLine = "console=ttyS0 panic=-1 quiet tsc=nowatchdog"

// Command is the QEMU command line for m. The guest's console is its standard output. The machine
// has no network other than the device, and the process needs no privilege.
func (q *QEMU) Command(ctx context.Context, m Machine) *exec.Cmd {
	args := []string{
		"-L", filepath.Join(q.root, "usr/share/qemu"), "-L",
		filepath.Join(q.root, "usr/share/seabios"),
		"-accel", "tcg", "-M", "q35,memory-backend=m0", "-cpu", "max",
		"-smp", fmt.Sprint(max(m.CPUs, 1)), "-m", fmt.Sprintf("%dM", m.Memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=m0,size=%dM,share=on", m.Memory),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", m.Kernel.Image, "-initrd", m.Initrd,
		"-append", strings.TrimSpace(commandLine + " " + m.Append),
	}
	if m.Count {
		args = append(args, "-icount", "shift=2") // 1 << 2 ns
	}
	if m.Serial != "" {
		args = append(args, "-serial", "unix:"+m.Serial)
	}
	if m.Monitor != "" {
		args = append(args, "-monitor", "unix:"+m.Monitor+",server=on,wait=off")
	}
	if m.Socket != "" {
		args = append(args, "-device", "pcie-root-port,id=rp0", "-device",
			fmt.Sprintf(`{"driver":"vfio-user-pci","id":"mlx","bus":"rp0","socket":{"type":"unix","path":%q}}`,
				m.Socket))
	}
	var files []*os.File
	if m.Standby != nil {
		const firstExtra = 3 // os/exec, Cmd.ExtraFiles
		files = append(files, m.Standby)
		args = append(args, "-netdev", fmt.Sprintf("tap,id=standby,fd=%d", firstExtra),
			"-device", cmp.Or(m.StandbyDevice, "virtio-net-pci")+",netdev=standby,romfile="+
				pairedWith(m.StandbyMAC))
	}
	cmd := q.exec(ctx, args...)
	cmd.ExtraFiles = files
	return cmd
}

// pairedWith is more of a virtio netdev's description.
func pairedWith(mac net.HardwareAddr) string {
	if mac == nil {
		return ""
	}
	return ",failover=on,mac=" + mac.String()
}
