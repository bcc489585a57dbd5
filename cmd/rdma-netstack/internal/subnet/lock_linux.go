package subnet

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock waits until no other process of this network namespace holds the lock, and takes it: a
// process that finds a free subnet keeps the lock until the subnet is on an interface. It ends with
// unlock, or with the process. It locks the namespace's own inode, so that it needs no directory to
// write to.
func Lock() (unlock func() error, err error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	for err == unix.EINTR {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the network namespace: %w", err), f.Close())
	}
	return f.Close, nil
}
