package hostnet

import (
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/netlink"
)

// Watcher tells that something has changed in the network namespace of the thread that made it:
// devices, addresses or routes.
type Watcher struct {
	listener *netlink.Listener
	changed  chan struct{} // capacity 1
}

// Watch listens. What changes from then on is told.
func Watch() (*Watcher, error) {
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR |
		unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	l, err := netlink.Listen("addresses and routes", unix.NETLINK_ROUTE, groups)
	if err != nil {
		return nil, err
	}
	w := &Watcher{listener: l, changed: make(chan struct{}, 1)}
	l.Start(8<<10, func([]byte) { // what messages are about is asked for
		select {
		case w.changed <- struct{}{}:
		default:
		}
	})
	return w, nil
}

// Changed returns the channel that holds a token when something has changed since the last one was
// taken.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close ends the watcher.
func (w *Watcher) Close() error { return w.listener.Close() }
