package kernel

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// Linux represents the kernel around a NIC, as seen through the uverbs device node: the
// core of linux drivers/infiniband/core/uverbs_*.c and the part of
// drivers/infiniband/hw/mlx5 that raw packet queues need. Each command makes the checks of linux in
// the same order, and returns the same error numbers. Its methods may be called from any goroutine.
type Linux struct {
	nic    *simnic.NIC
	cfg    Config
	page   uint64       // bytes of a system page
	pinned atomic.Int64 // pages pinned by all files, what RLIMIT_MEMLOCK counts

	populates bool
	refused   atomic.Int64
	rates     rateTable

	methods map[methodKey]*method
	writes  map[uint32]writeCommand
}

// Refused returns how many changes of a queue's state the firmware refused because the current
// state in the command was wrong. Each is a line in the kernel's log, even if the command reports
// success. A correct driver causes none.
func (l *Linux) Refused() int64 { return l.refused.Load() }

// Pinned returns how many bytes of its clients' memory the kernel holds, in whole pages.
func (l *Linux) Pinned() int64 { return l.pinned.Load() * int64(l.page) }

// New returns a kernel whose only RDMA device is n. It need not be closed.
func New(n *simnic.NIC, cfg Config) *Linux {
	return &Linux{nic: n, cfg: cfg.withDefaults(), page: uint64(os.Getpagesize()),
		populates: canPopulate(), methods: methodTable(cfg.Release), writes: writeTable()}
}

// isRelease reports whether the kernel is of the given release.
func (l *Linux) isRelease(r Release) bool { return l.cfg.Release == r }

// OpenNode opens the device node. The error is a unix.Errno: EIO if the device has failed.
func (l *Linux) OpenNode() (uverbs.Kernel, error) {
	if l.nic.Usable() != nil {
		return nil, unix.EIO
	}
	return &node{linux: l, nic: l.nic}, nil
}

// node represents one open file of the device node: struct ib_uverbs_file.
type node struct {
	linux *Linux
	nic   *simnic.NIC

	mu      sync.Mutex // one command at a time; covers what follows
	closed  bool
	ctx     *ucontext  // nil until GET_CONTEXT
	handles []*uobject // by handle, nil where free
	lowest  int        // no handle below it is free

	events eventSet
	queues eventQueues
	gone   atomic.Bool // closed: doorbells do nothing
}

var (
	_ uverbs.Kernel      = (*node)(nil)
	_ uverbs.EventQueues = (*node)(nil)
)

// Ioctl does ioctl(fd, RDMA_VERBS_IOCTL, buf).
func (n *node) Ioctl(buf []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return unix.EBADF
	}
	if errno := n.runIoctl(buf); errno != 0 {
		return errno
	}
	return nil
}

// Close closes the file and destroys all objects created through it, each before the objects it
// uses. Event descriptors of the client stay open and signal end of file.
func (n *node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return unix.EBADF
	}
	n.closed = true
	n.gone.Store(true)
	n.destroyAll()
	n.events.closeAll()
	if n.ctx != nil {
		n.ctx.freeResources(n)
	}
	return nil
}

// checkAlive returns an error if the device has failed. It is called where the kernel makes this
// check.
func (n *node) checkAlive() unix.Errno {
	if n.nic.Usable() != nil {
		return unix.EIO
	}
	return 0
}

// checkContext makes the first checks of queries: the device works, and GET_CONTEXT was called.
func (n *node) checkContext() unix.Errno {
	if errno := n.checkAlive(); errno != 0 {
		return errno
	}
	if n.ctx == nil {
		return unix.EINVAL
	}
	return 0
}
