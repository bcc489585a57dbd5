package failover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/netlink"
)

// Watcher listens to the kernel: uevents of RDMA devices, rtnetlink's about netdevs of the network
// namespace in which it was made. No privilege is needed.
type Watcher struct {
	listeners []*netlink.Listener
	signals   chan Signal
	done      chan struct{}
	once      sync.Once
}

// Watch begins to listen. Signals that come while nobody reads the channel are missed: the kernel
// drops what its socket has no room for.
func Watch() (*Watcher, error) {
	w := &Watcher{signals: make(chan Signal), done: make(chan struct{})}
	for _, s := range []struct {
		protocol int
		groups   uint32
		parse    func([]byte) []Signal
	}{
		{unix.NETLINK_KOBJECT_UEVENT, 1, uevent},
		{unix.NETLINK_ROUTE, unix.RTMGRP_LINK, linkMessages},
	} {
		l, err := netlink.Listen("devices", s.protocol, s.groups)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.listeners = append(w.listeners, l)
		l.Start(64<<10, func(message []byte) { w.pass(message, s.parse) })
	}
	return w, nil
}

// Signals returns where they come. It is never closed.
func (w *Watcher) Signals() <-chan Signal { return w.signals }

// pass passes on the signals of a message.
func (w *Watcher) pass(message []byte, parse func([]byte) []Signal) {
	signals := []Signal{{}} // something was missed
	if message != nil {
		signals = parse(message)
	}
	for _, s := range signals {
		select {
		case w.signals <- s:
		case <-w.done:
			return
		}
	}
}

// Close ends the watcher. It may be called again.
func (w *Watcher) Close() error {
	var errs []error
	w.once.Do(func() {
		close(w.done)
		for _, l := range w.listeners {
			errs = append(errs, l.Close())
		}
	})
	return errors.Join(errs...)
}

// uevent reads a message of lib/kobject_uevent.c: "add@/devices/...", then KEY=value, each ended by
// a zero. Those about RDMA devices count.
func uevent(message []byte) []Signal {
	rdma := false
	header, rest, _ := bytes.Cut(message, []byte{0})
	action, path, ok := bytes.Cut(header, []byte("@"))
	for _, field := range bytes.Split(rest, []byte{0}) {
		rdma = rdma || bytes.Equal(field, []byte("SUBSYSTEM=infiniband"))
	}
	if !ok || !rdma {
		return nil
	}
	name := path[bytes.LastIndexByte(path, '/')+1:]
	switch string(action) {
	case "remove":
		return []Signal{{Gone: true, Name: string(name)}}
	case "add", "bind", "online":
		return []Signal{{}}
	}
	return nil
}

// linkMessages reads messages of rtnetlink(7) about netdevs.
func linkMessages(message []byte) (signals []Signal) {
	ne := binary.NativeEndian
	for len(message) >= unix.SizeofNlMsghdr+unix.SizeofIfInfomsg {
		size := int(ne.Uint32(message))
		if size < unix.SizeofNlMsghdr+unix.SizeofIfInfomsg || size > len(message) {
			return signals
		}
		index := int(int32(ne.Uint32(message[unix.SizeofNlMsghdr+4:])))
		switch ne.Uint16(message[4:]) {
		case unix.RTM_DELLINK:
			// A bridge tells about its ports by this message, too (family AF_BRIDGE).
			if message[unix.SizeofNlMsghdr] == unix.AF_UNSPEC {
				moved := hasAttribute(message[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:size],
					unix.IFLA_NEW_NETNSID)
				signals = append(signals, Signal{Gone: !moved, Moved: moved, Ifindex: index})
			}
		case unix.RTM_NEWLINK:
			signals = append(signals, Signal{Ifindex: index})
		}
		message = message[min((size+3)&^3, len(message)):]
	}
	return signals
}

// hasAttribute reports whether one of the attributes of a message is of a kind. A netdev that
// leaves for another network namespace is removed with the number that this one has for that
// (__dev_change_net_namespace in linux net/core/dev.c).
func hasAttribute(attributes []byte, kind uint16) bool {
	for len(attributes) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(attributes))
		if size < unix.SizeofRtAttr || size > len(attributes) {
			return false
		}
		if binary.NativeEndian.Uint16(attributes[2:])&0x3fff == kind {
			return true
		}
		attributes = attributes[min((size+3)&^3, len(attributes)):]
	}
	return false
}
