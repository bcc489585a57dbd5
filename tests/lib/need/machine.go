package need

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Root continues with effective user id 0.
func Root(t testing.TB) {
	t.Helper()
	var err error
	if uid := os.Geteuid(); uid != 0 {
		err = fmt.Errorf("user id is %d, not 0", uid)
	}
	That(t, "root", err)
}

// NetNS continues where this process may make network namespaces.
func NetNS(t testing.TB) {
	t.Helper()
	That(t, "netns", probeNetNS())
}

// UserNS continues where a child of this process may have a user namespace with a network namespace
// in it, which needs no privilege on most distributions.
func UserNS(t testing.TB) {
	t.Helper()
	That(t, "userns", probeUserNS())
}

// Pages is for tests that hold what the kernel here does against kernels with pages of size bytes.
func Pages(t testing.TB, size int) {
	t.Helper()
	var err error
	if got := os.Getpagesize(); got != size {
		err = fmt.Errorf("they are of %d bytes", got)
	}
	That(t, fmt.Sprintf("pages of %d bytes", size), err)
}

// TUN continues where this process may make a network namespace with a TAP interface in it.
func TUN(t testing.TB) {
	t.Helper()
	That(t, "tun", probeTUN())
}

// Hardware returns the name of the RDMA device that tests may use. Tests never choose one
// themselves: they must not claim queues on a NIC that is in use. RDMA_DEVICE names it.
func Hardware(t testing.TB) string {
	t.Helper()
	dev := os.Getenv("RDMA_DEVICE")
	That(t, "hardware", checkHardware("/sys/class/infiniband", dev))
	return dev
}

func checkHardware(root, dev string) error {
	if dev == "" {
		return errors.New(
			"set RDMA_DEVICE to an mlx5 device that tests may use (rdma link lists them)")
	}
	driver, err := os.Readlink(filepath.Join(root, dev, "device", "driver"))
	if err != nil {
		return fmt.Errorf("RDMA_DEVICE=%s: %w", dev, err)
	}
	if filepath.Base(driver) != "mlx5_core" {
		return fmt.Errorf("RDMA_DEVICE=%s: driver is %s, not mlx5_core", dev, filepath.Base(driver))
	}
	return nil
}

// KVM continues where virtual machines run at the processor's speed.
func KVM(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	That(t, "kvm", err)
}

// QEMU returns the path of qemu-system-x86_64, or of $QEMU, of at least this
// version. 10.1 is the first with a vfio-user client.
func QEMU(t testing.TB, major, minor int) string {
	t.Helper()
	path := os.Getenv("QEMU")
	var err error
	if path == "" {
		path, err = lookPath("qemu-system-x86_64")
	}
	if err == nil {
		err = checkQEMU(path, major, minor)
	}
	That(t, "qemu", err)
	return path
}

func checkQEMU(path string, major, minor int) error {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", path, err)
	}
	m := regexp.MustCompile(`version (\d+)\.(\d+)`).FindStringSubmatch(string(out))
	if m == nil {
		return fmt.Errorf("%s --version says %q", path, strings.TrimSpace(string(out)))
	}
	haveMajor, _ := strconv.Atoi(m[1])
	haveMinor, _ := strconv.Atoi(m[2])
	if haveMajor < major || haveMajor == major && haveMinor < minor {
		return fmt.Errorf("%s is version %d.%d, not %d.%d", path,
			haveMajor, haveMinor, major, minor)
	}
	return nil
}
