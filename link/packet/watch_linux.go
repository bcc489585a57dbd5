package packet

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/netlink"
)

// watch follows the state of the interface, from before it looks first, until the listener is
// closed. The kernel says that an interface of the network namespace has changed; what has become
// of ours is asked for.
func (p *Port) watch() (err error) {
	if p.watcher, err = netlink.Listen(p.name, unix.NETLINK_ROUTE, unix.RTMGRP_LINK); err != nil {
		return err
	}
	p.refreshState()
	p.watcher.Start(8<<10, func([]byte) { p.refreshState() })
	return nil
}

// refreshState asks for the interface's state and makes a change known.
func (p *Port) refreshState() {
	fd := p.rx[0].fd // open for longer than the watcher runs
	name, err := nameOf(fd, p.iface.index)
	if errors.Is(err, unix.ENODEV) {
		p.linkUp.Store(false)
		p.endOnce(fmt.Errorf("%w: netdev %s was removed, or moved to another network namespace: %w",
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
	now := int32(p.cfg.usableMTU(mtu))
	if p.mtu.Swap(now) == now {
		return
	}
	select {
	case p.mtuChanged <- struct{}{}:
	default:
	}
}
