// Package hostnet reads what Linux's network configuration has for one network device, and which
// way the kernel would send, by rtnetlink(7). It changes nothing and needs no privileges.
package hostnet

import (
	"net"
	"net/netip"
	"time"
)

// Network is how Linux has configured a device.
type Network struct {
	Name       string // its own, also if it was asked for by an alternative name
	Index, MTU int
	MAC        net.HardwareAddr
	Up         bool
	// Addresses that may be used, in the order in which the kernel has them: not those that are
	// being probed for, or that another host has.
	Addresses []netip.Prefix
	// Routes of the main table that leave by the device; of one destination the one with the
	// lowest metric.
	Routes []Route
}

// Link holds what there is to know of a device by its number.
type Link struct {
	Name string
	MAC  net.HardwareAddr
}

// Route is one of them.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr // the zero Addr: the destination is on the link
	MTU         int        // in bytes; 0: the device's
}

// Below holds what carries the frames of a device that sends none itself.
type Below struct {
	// Devices are those below it: the one that a VLAN is on, the members of a bond, or the virtual
	// function of a netvsc or net_failover device; those of the latter for a VLAN on them.
	Devices []Port
	VLAN    uint16 // its id, if it is a VLAN's; else 0
	Bond    bool   // it is one, or is on one
	Mode    string // of the bond, as ip link has it: "active-backup"
	MAC     net.HardwareAddr
}

// Port is a device below another one.
type Port struct {
	Name string
	MAC  net.HardwareAddr
	Card string // PCI address without the function, "0000:c1:00", of an mlx5 one; else ""
	RDMA bool   // the function has an RDMA device of its own

	// Of a bond's member: the bond sends by it, and takes frames from it.
	Sends, Receives bool
}

// Conn describes a connection of the kernel's, as ss(8) has it.
type Conn struct {
	Local, Remote             netip.AddrPort
	State                     string // ESTAB, TIME-WAIT ... as ss prints them
	RecvQ, SendQ              int    // bytes
	RTO, RTT, RTTVar          time.Duration
	MSS                       int // bytes
	Cwnd, Ssthresh, Unacked   int // segments
	SegsOut, SegsIn, Retrans  uint64
	Timestamps, SACK          bool
	SndWscale, RcvWscale      int
	BytesAcked, BytesReceived uint64
}

// Way is how the kernel would send to an address.
type Way struct {
	Index  int        // ifindex of the device it would leave by
	Local  bool       // it is an address of this host
	Source netip.Addr // the kernel's choice
}
