// Package netdev reads what Linux knows about a port besides its device node: the
// interface, its addresses and routes (rtnetlink), the RDMA device behind it (RDMA
// netlink), and the memory this process has pinned. It only reads, but for Membership, which
// has an interface receive more addresses. Answers are those of the network namespace of the
// calling thread. Other systems than Linux answer
// errors.ErrUnsupported, or nothing.
package netdev

import (
	"net"
	"net/netip"
)

// Interface holds what the kernel says about a netdev.
type Interface struct {
	Name string // its own, also if it was asked for by an alternative name (ip link property)
	MAC  net.HardwareAddr
	MTU  int // bytes of the longest IP packet
	Up   bool
}

// Network is how Linux uses a netdev. The fields are those of dv.Network.
type Network struct {
	Netdev    string
	Addresses []netip.Addr
	Subnets   []netip.Prefix
	Gateways  []netip.Addr
}

// RDMAFacts holds what RDMA netlink knows and sysfs does not. Zero where it does not answer.
type RDMAFacts struct {
	Driver  uint32           // enum rdma_driver_id (include/uapi/rdma/ib_user_ioctl_verbs.h)
	Netdevs map[uint8]string // by port
}
