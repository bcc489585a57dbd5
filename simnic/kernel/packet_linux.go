package kernel

import (
	"net"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// PacketSocket represents a packet socket of protocol 0 with its memberships on the port's netdev
// (packet(7); packet_mc_add and packet_mc_drop in linux 6.12 net/packet/af_packet.c). Its
// methods may be called from any goroutine.
type PacketSocket struct {
	nic *simnic.NIC

	mu      sync.Mutex
	closed  bool
	members map[string]int // by address, "" for PACKET_MR_ALLMULTI
}

// OpenPacketSocket does socket(AF_PACKET, SOCK_RAW, 0). The error is a unix.Errno.
func (l *Linux) OpenPacketSocket() (*PacketSocket, error) {
	if l.cfg.NoNetRaw {
		return nil, unix.EPERM
	}
	return &PacketSocket{nic: l.nic, members: map[string]int{}}, nil
}

// Add performs PACKET_ADD_MEMBERSHIP: of PACKET_MR_ALLMULTI if mac is nil, else of
// PACKET_MR_MULTICAST or PACKET_MR_UNICAST as the group bit says.
func (s *PacketSocket) Add(mac net.HardwareAddr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return unix.EBADF
	case mac != nil && len(mac) != 6:
		return unix.EINVAL
	}
	if s.members[string(mac)]++; s.members[string(mac)] > 1 {
		return nil
	}
	if mac == nil {
		s.nic.AddAllMulticast()
	} else {
		s.nic.AddAddress([6]byte(mac))
	}
	return nil
}

// Remove performs PACKET_DROP_MEMBERSHIP.
func (s *PacketSocket) Remove(mac net.HardwareAddr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.members[string(mac)]; {
	case s.closed:
		return unix.EBADF
	case n == 0:
		return nil // as in linux
	case n > 1:
		s.members[string(mac)]--
		return nil
	}
	s.dropMAC(string(mac))
	return nil
}

// dropMAC removes an address from the netdev's lists.
func (s *PacketSocket) dropMAC(mac string) {
	delete(s.members, mac)
	if mac == "" {
		s.nic.RemoveAllMulticast()
	} else {
		s.nic.RemoveAddress([6]byte([]byte(mac)))
	}
}

// Close drops all memberships, as the end of the process does.
func (s *PacketSocket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return unix.EBADF
	}
	s.closed = true
	for mac := range s.members {
		s.dropMAC(mac)
	}
	return nil
}
