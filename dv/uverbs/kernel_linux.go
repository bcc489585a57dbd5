//go:build linux

package uverbs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// node is an opened /dev/infiniband/uverbsN. os.File counts its users, so the descriptor number
// cannot be reused while an ioctl runs.
type node struct{ file *os.File }

// OpenNode opens a uverbs device node. The error wraps the errno: ENOENT no such node, EACCES its
// mode forbids it, EPERM the device cgroup or the RDMA network namespace forbids it, ENXIO, ENODEV,
// EIO the device is being removed.
func OpenNode(path string) (Kernel, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, kernelFailure(opOpenNode, path, err, memory{})
	}
	return &node{os.NewFile(uintptr(fd), path)}, nil
}

func (n *node) Ioctl(buf []byte) error {
	return n.withFD(func(fd int) error { return ioctl(fd, buf) })
}

func (n *node) Mmap(offset int64, length int, writable bool) (*Page, error) {
	var p *Page
	err := n.withFD(func(fd int) error {
		mem, err := mmio.MapShared(fd, offset, length, writable)
		p = &Page{Mem: mem}
		return err
	})
	var errno unix.Errno
	if errors.As(err, &errno) {
		return nil, errno
	}
	return p, err
}

// PortCounter implements PortCounters.
func (n *node) PortCounter(port uint8, name string) (uint64, error) {
	var st unix.Stat_t
	if err := n.withFD(func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return 0, err
	}
	return sysfs{"/"}.portCounter(unix.Major(st.Rdev), unix.Minor(st.Rdev), port, name)
}

func (n *node) Close() error {
	if err := n.file.Close(); err != nil {
		return unix.EBADF
	}
	return nil
}

// withFD runs f on the descriptor, which stays open meanwhile. After Close it returns EBADF.
func (n *node) withFD(f func(fd int) error) error {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return unix.EBADF
	}
	var result error
	if raw.Control(func(fd uintptr) { result = f(int(fd)) }) != nil {
		return unix.EBADF
	}
	return result
}
