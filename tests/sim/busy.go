package sim

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// busy counts goroutines that are, or soon will be, in a system call. When one of these ends and
// there is no processor for its goroutine, that counts neither as running nor as runnable for a
// moment.
type busy struct {
	atomic.Int64
	// maps: since the last rest, memory may have been mapped or unmapped by goroutines that are not
	// counted: a lost device is looked for, or its driver has closed it.
	maps atomic.Bool
}

// busyKernel counts the commands of a device node that are under way: the software NIC's kernel
// makes system calls to look at the driver's memory.
type busyKernel struct {
	uverbs.Kernel
	busy *busy
	// begun is called by each command, closing by Close: the driver has its memory by then, or
	// frees it.
	begun, closing func()
}

var (
	_ uverbs.EventQueues  = busyKernel{}
	_ uverbs.PortCounters = busyKernel{}
)

// Ioctl implements uverbs.Kernel.
func (k busyKernel) Ioctl(buf []byte) error {
	k.busy.Add(1)
	defer k.busy.Add(-1)
	k.begun()
	return k.Kernel.Ioctl(buf)
}

// Mmap implements uverbs.Kernel.
func (k busyKernel) Mmap(offset int64, length int, writable bool) (*uverbs.Page, error) {
	k.busy.Add(1)
	defer k.busy.Add(-1)
	return k.Kernel.Mmap(offset, length, writable)
}

// Close implements uverbs.Kernel.
func (k busyKernel) Close() error {
	k.closing()
	return k.Kernel.Close()
}

// EventQueue implements uverbs.EventQueues.
func (k busyKernel) EventQueue(fd int) uverbs.EventQueue {
	if q, ok := k.Kernel.(uverbs.EventQueues); ok {
		return q.EventQueue(fd)
	}
	return nil
}

// PortCounter implements uverbs.PortCounters.
func (k busyKernel) PortCounter(port uint8, name string) (uint64, error) {
	if c, ok := k.Kernel.(uverbs.PortCounters); ok {
		return c.PortCounter(port, name)
	}
	return 0, unix.EOPNOTSUPP
}
