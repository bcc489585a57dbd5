package addrlock

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerPID returns the process at the other end of a unix socket, 0 if it is not known here.
func peerPID(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}
