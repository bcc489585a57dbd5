package hostnet

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher tells that something has changed in the network namespace of the thread that made it:
// devices, addresses or routes.
type Watcher struct {
	file    *os.File
	changed chan struct{} // capacity 1
	ended   sync.WaitGroup
}

// Watch listens. What changes from then on is told.
func Watch() (*Watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch addresses and routes: %w", err)
	}
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR |
		unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch addresses and routes: %w", err), unix.Close(fd))
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "rtnetlink"), changed: make(chan struct{}, 1)}
	w.ended.Go(w.run)
	return w, nil
}

// run reads messages, whose contents do not matter: what they are about is asked for.
func (w *Watcher) run() {
	var message [8 << 10]byte // a longer one is cut off
	for {
		_, err := w.file.Read(message[:])
		// ENOBUFS: there were more than it could hold
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// Changed has a token in it when something has changed since the last one was taken.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close ends the watcher.
func (w *Watcher) Close() error {
	err := w.file.Close()
	w.ended.Wait()
	return err
}
