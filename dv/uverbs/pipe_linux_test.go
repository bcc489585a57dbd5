package uverbs

import "golang.org/x/sys/unix"

// packetPipe creates a pipe that preserves message boundaries (pipe(2), O_DIRECT).
func packetPipe() (r, w int, err error) {
	var fds [2]int
	err = unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_DIRECT)
	return fds[0], fds[1], err
}
