package netdev

import (
	"fmt"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Membership has a netdev receive frames to more addresses than its own, by a packet socket
// of protocol 0, which itself receives nothing (packet(7)). The driver of the netdev passes
// the addresses on to the function's lists, by which an e-switch goes. They are gone when the
// socket is: with Close, or with the process. Its methods may be called from any goroutine.
type Membership struct {
	index int32

	mu sync.Mutex
	fd int // guarded by mu; -1 once closed
}

// OpenMembership opens a socket for the netdev called name, which needs CAP_NET_RAW.
func OpenMembership(name string) (*Membership, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	return &Membership{index: int32(link.Attrs().Index), fd: fd}, nil
}

// Add receives frames to mac, to every group if mac is nil. Each Add of the same address
// counts.
func (m *Membership) Add(mac net.HardwareAddr) error {
	return m.setMembership(unix.PACKET_ADD_MEMBERSHIP,
		mac)
}

// Remove undoes an Add, if there was one.
func (m *Membership) Remove(mac net.HardwareAddr) error {
	return m.setMembership(unix.PACKET_DROP_MEMBERSHIP, mac)
}

// Close undoes every Add. Closing again does nothing.
func (m *Membership) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return nil
	}
	err := unix.Close(m.fd)
	m.fd = -1
	return err
}

func (m *Membership) setMembership(option int, mac net.HardwareAddr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return net.ErrClosed
	}
	mreq := unix.PacketMreq{Ifindex: m.index, Type: membershipType(mac), Alen: uint16(len(mac))}
	if copy(mreq.Address[:], mac) < len(mac) {
		return unix.EINVAL
	}
	return unix.SetsockoptPacketMreq(m.fd, unix.SOL_PACKET, option, &mreq)
}

func membershipType(mac net.HardwareAddr) uint16 {
	switch {
	case len(mac) == 0:
		return unix.PACKET_MR_ALLMULTI
	case mac[0]&1 != 0:
		return unix.PACKET_MR_MULTICAST
	}
	return unix.PACKET_MR_UNICAST
}
