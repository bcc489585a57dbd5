package packet

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher follows the state of a port's interface. The kernel says that an interface of the network
// namespace has changed; what has become of ours is asked for.
type watcher struct {
	file  *os.File // an rtnetlink socket; nil until started
	ended sync.WaitGroup
}

// start listens, and then looks once: nothing is missed from then on.
func (w *watcher) start(p *Port) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("watch %s: %w", p.name, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: unix.RTMGRP_LINK}); err != nil {
		return errors.Join(fmt.Errorf("watch %s: %w", p.name, err), unix.Close(fd))
	}
	w.file = os.NewFile(uintptr(fd), "rtnetlink")
	p.look()
	w.ended.Go(func() { w.run(p) })
	return nil
}

func (w *watcher) run(p *Port) {
	var message [8 << 10]byte // a longer one is cut off, and not read anyway
	for {
		_, err := w.file.Read(message[:])
		// ENOBUFS: there were more than it could hold
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		p.look()
	}
}

// close ends the watcher. It does nothing if that was not started.
func (w *watcher) close() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.ended.Wait()
	return err
}

// look asks for the interface's state and makes a change known.
func (p *Port) look() {
	fd := p.rx[0].fd // open for longer than the watcher runs
	name, err := nameOf(fd, p.iface.index)
	if errors.Is(err, unix.ENODEV) {
		p.linkUp.Store(false)
		p.end(fmt.Errorf("%w: netdev %s was removed, or moved to another network namespace: %w",
			ErrGone, p.name, unix.ENODEV))
		return
	}
	if err != nil {
		return
	}
	p.lookAtMTU(fd, name)
	admin, carrier, err := flagsOf(fd, name)
	if err != nil || !p.linkUp.CompareAndSwap(!(admin && carrier), admin && carrier) {
		return
	}
	p.linkChanges.Add(1)
	select {
	case p.linkChanged <- struct{}{}:
	default:
	}
}

// lookAtMTU asks for the interface's MTU and makes a change known.
func (p *Port) lookAtMTU(fd int, name string) {
	mtu, err := mtuOf(fd, name)
	if err != nil {
		return
	}
	now := int32(p.cfg.usable(mtu))
	if p.mtu.Swap(now) == now {
		return
	}
	select {
	case p.mtuChanged <- struct{}{}:
	default:
	}
}
