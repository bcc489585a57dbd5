package dv

import "net"

// iface is what the kernel says about a netdev.
type iface struct {
	Name string
	MAC  net.HardwareAddr
	MTU  int
	Up   bool
}
