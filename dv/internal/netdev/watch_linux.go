package netdev

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watcher tells what becomes of one netdev of the network namespace of the thread that made it.
type Watcher struct {
	index   int
	changed func(Interface)
	file    *os.File        // an rtnetlink socket
	handle  *netlink.Handle // asks
	ended   sync.WaitGroup
}

// Watch calls changed with the netdev called name, now and after each change, from one goroutine at
// a time. The netdev is followed by its number, whatever it is called later. It ends with Close;
// while the netdev is not in the namespace nothing is told.
func Watch(name string, changed func(Interface)) (*Watcher, error) {
	fail := func(err error, fd int) (*Watcher, error) {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, fmt.Errorf("watch %s: %w", name, err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fail(err, -1)
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		handle.Close()
		return fail(err, -1)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		unix.NETLINK_ROUTE)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
			Groups: unix.RTMGRP_LINK})
	}
	if err != nil {
		handle.Close()
		return fail(err, fd)
	}
	w := &Watcher{index: link.Attrs().Index, changed: changed, handle: handle,
		file: os.NewFile(uintptr(fd), "rtnetlink")}
	w.askForNetdev()
	w.ended.Go(w.readMessages)
	return w, nil
}

// readMessages reads messages, whose contents do not matter: the netdev is asked for.
func (w *Watcher) readMessages() {
	var message [8 << 10]byte // a longer one is cut off
	for {
		_, err := w.file.Read(message[:])
		// ENOBUFS: there were more than it could hold
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		w.askForNetdev()
	}
}

func (w *Watcher) askForNetdev() {
	link, err := w.handle.LinkByIndex(w.index)
	if err != nil {
		return
	}
	w.changed(interfaceOf(link))
}

// Close ends the watcher and waits for a call that is going on.
func (w *Watcher) Close() error {
	err := w.file.Close()
	w.ended.Wait()
	w.handle.Close()
	return err
}
