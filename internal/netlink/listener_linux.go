package netlink

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Listener reads the messages that come to a socket of netlink(7).
type Listener struct {
	file  *os.File
	ended sync.WaitGroup
}

// Listen opens a socket in the network namespace of the calling thread. The error says what.
func Listen(what string, protocol int, groups uint32) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		protocol)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", what, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", what, err), unix.Close(fd))
	}
	return &Listener{file: os.NewFile(uintptr(fd), "netlink")}, nil
}

// Start calls heard for what comes, until Close: one goroutine does. A message is cut at size
// bytes, and good until heard returns; nil: the kernel had more than the socket could hold.
func (l *Listener) Start(size int, heard func(message []byte)) {
	l.ended.Go(func() {
		message := make([]byte, size)
		for {
			n, err := l.file.Read(message)
			switch {
			case err == nil:
				heard(message[:n])
			case errors.Is(err, unix.ENOBUFS):
				heard(nil)
			default:
				return
			}
		}
	})
}

// Close ends the listener, and returns once nothing is heard any more.
func (l *Listener) Close() error {
	err := l.file.Close()
	l.ended.Wait()
	return err
}
