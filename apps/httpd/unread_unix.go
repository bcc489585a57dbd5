//go:build unix

package httpd

import "syscall"

// unreadOf says whether a socket has bytes that can be read without waiting. Deadlines of reads do
// not matter to it.
func unreadOf(socket syscall.RawConn) (waits, known bool) {
	err := socket.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		waits = n > 0 && err == nil
	})
	return waits, err == nil
}
