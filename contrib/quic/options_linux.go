package quic

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// SyscallConn returns the access to socket options.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.options, nil }

// optionSocket implements syscall.RawConn on a socket of the kernel, for options only.
type optionSocket struct {
	to   *stack.UDPConn
	file *os.File
	raw  syscall.RawConn

	closed atomic.Bool

	mu   sync.Mutex
	seen map[option]int // what the options were when they were last looked at; guarded by mu
}

// option names a socket option.
type option struct{ level, name int }

// options lists those that the slice's socket has, too.
var options = []option{
	{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER}, {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER},
	{unix.IPPROTO_IP, unix.IP_RECVTOS}, {unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS},
	{unix.IPPROTO_IP, unix.IP_PKTINFO}, {unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO},
}

// newOptionSocket makes a socket for both versions of IP, or for IPv4 if the kernel has no other.
func newOptionSocket(to *stack.UDPConn) (*optionSocket, error) {
	const kind = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_INET6, kind, 0)
	if err == unix.EAFNOSUPPORT {
		fd, err = unix.Socket(unix.AF_INET, kind, 0)
	}
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	o := &optionSocket{to: to, file: os.NewFile(uintptr(fd), "options"), seen: readOptions(fd)}
	if o.raw, err = o.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, o.file.Close())
	}
	return o, nil
}

// readOptions returns the options that the socket has.
func readOptions(fd int) map[option]int {
	m := map[option]int{}
	for _, o := range options {
		if v, err := unix.GetsockoptInt(fd, o.level, o.name); err == nil {
			m[o] = v
		}
	}
	return m
}

// Control implements syscall.RawConn: it sets on the slice's socket what f changes.
func (o *optionSocket) Control(f func(fd uintptr)) error {
	var failed error
	err := o.raw.Control(func(fd uintptr) {
		f(fd)
		failed = o.applyChanges(int(fd))
	})
	if err != nil && o.closed.Load() {
		return net.ErrClosed
	}
	return errors.Join(err, failed)
}

// applyChanges sets on the slice's socket what has changed since the last time.
func (o *optionSocket) applyChanges(fd int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := readOptions(fd)
	for _, name := range options {
		v, ok := now[name]
		if !ok || v == o.seen[name] {
			continue
		}
		if err := o.applyOption(name, v); err != nil {
			return err
		}
		o.seen[name] = v
	}
	return nil
}

// applyOption sets an option for both versions of IP, of which the kernel may lack one.
func (o *optionSocket) applyOption(name option, v int) error {
	switch name {
	case option{unix.IPPROTO_IP, unix.IP_RECVTOS},
		option{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}:
		return o.to.SetReceiveTOS(v != 0)
	case option{unix.IPPROTO_IP, unix.IP_PKTINFO},
		option{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO}:
		return o.to.SetControl(v != 0)
	}
	if v > unix.IP_PMTUDISC_PROBE { // INTERFACE and OMIT set no DF and take no advice
		v = unix.IP_PMTUDISC_DONT
	}
	return o.to.SetPathMTUDiscovery(stack.PathMTUDiscovery(v))
}

// Read implements syscall.RawConn: the socket carries nothing.
func (*optionSocket) Read(func(fd uintptr) bool) error { return stack.ErrNoDescriptor }

// Write refuses as Read does.
func (*optionSocket) Write(func(fd uintptr) bool) error { return stack.ErrNoDescriptor }

func (o *optionSocket) closeSocket() error {
	o.closed.Store(true)
	return o.file.Close()
}
