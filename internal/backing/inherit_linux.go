package backing

import (
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Adopt makes a socket of a descriptor that another process has given us: both have one socket of
// the kernel's, with one filter and one queue, which lasts until both have closed it. Its filter is
// that of one which serves, and may be its own. It owns fd.
func Adopt(p Protocol, at netip.AddrPort, f *Filters, fd int) *Socket {
	unix.CloseOnExec(fd)
	s := &Socket{protocol: p, at: at, filters: f, fd: fd, serving: true}
	s.setOwned(true)
	return s
}

// Duplicate returns a descriptor to give another process; the caller closes it.
func (s *Socket) Duplicate() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return -1, net.ErrClosed
	}
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("fcntl", err)
}

// Waiting returns how many connections of a port of TCP wait to be accepted.
func (s *Socket) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return 0
	}
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Unacked) // of a listener: linux net/ipv4/tcp.c tcp_get_info
}
