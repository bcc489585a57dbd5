package xdp

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace remembers the network namespace of a thread: bpf(2) takes an interface's number for one
// of the calling thread's, whichever the sockets are of.
type namespace struct {
	cookie uint64   // 0: not known, before linux 5.14
	file   *os.File // nil: it cannot be entered
}

// ownNamespace returns that of the calling thread.
func ownNamespace() (n namespace) {
	n.cookie = cookieNow()
	n.file, _ = os.Open("/proc/thread-self/ns/net")
	return n
}

// cookieNow returns the number of the calling thread's network namespace.
func cookieNow() uint64 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// doInside calls f in the namespace. It needs CAP_SYS_ADMIN if the thread is in another one.
func (n *namespace) doInside(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cookieNow() == n.cookie {
		return f()
	}
	back := ownNamespace()
	defer back.closeFile()
	if err := n.switchThread(); err != nil {
		return err
	}
	err := f()
	if back := back.switchThread(); back != nil {
		runtime.LockOSThread() // for good: nobody else may have this thread
		err = errors.Join(err, back)
	}
	return err
}

func (n *namespace) switchThread() error {
	if n.file == nil {
		return errors.New("the network namespace of an interface cannot be entered: no /proc")
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace of an interface: %w", err)
	}
	return nil
}

func (n *namespace) closeFile() {
	if n.file != nil {
		n.file.Close()
	}
}
