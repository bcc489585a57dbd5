package dv

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Priority says which of several rules that match a frame takes it: the one of the lowest.
// Listeners and blocks have priorities of their own because a device has room for six kinds of
// masks in each (MLX5_FS_MAX_TYPES in linux drivers/infiniband/hw/mlx5/fs.c).
type Priority uint8

// The priorities of host mode.
const (
	// PriorityLinux leaves frames to Linux that a rule behind it would take.
	PriorityLinux Priority = iota
	// PriorityHandOver takes frames from a listener's rule that is about to go.
	PriorityHandOver
	PriorityListener
	PriorityBlock
	hostPriorities
)

var priorityNames = [hostPriorities]string{"linux", "hand-over", "listener", "block"}

// String implements fmt.Stringer.
func (p Priority) String() string {
	if p < hostPriorities {
		return priorityNames[p]
	}
	return fmt.Sprintf("Priority(%d)", uint8(p))
}

// BlockPorts is the size of a block of ports for outgoing connections, and FirstBlock the first
// port of the first one: above the ports that Linux gives out by default (ip_local_port_range,
// 32768 to 60999). The last block ends at 65535.
const (
	BlockPorts = 256
	FirstBlock = 0xf000
)

// HostRule is the frames that a rule of host mode takes: TCP or UDP to one address of the port's
// netdev and one port, or an aligned block of ports, in the device's VLAN. Fragments have no ports
// and do not match. Values may be compared.
type HostRule struct {
	Priority Priority
	Proto    uint8      // 6 (TCP) or 17 (UDP)
	Addr     netip.Addr // the destination, without a zone
	Port     uint16     // the first port
	// Ports is how many there are from Port on: a power of two that divides Port. 0 is 1.
	Ports int
}

// ports is Ports with its default.
func (r HostRule) ports() int { return max(r.Ports, 1) }

// mask is the bits of a port that must be those of Port.
func (r HostRule) mask() uint16 { return ^uint16(r.ports() - 1) }

// String says which frames these are: "TCP port 443 of 10.0.0.1".
func (r HostRule) String() string {
	proto := fmt.Sprintf("protocol %d", r.Proto)
	switch r.Proto {
	case protoTCP:
		proto = "TCP"
	case protoUDP:
		proto = "UDP"
	}
	if r.ports() == 1 {
		return fmt.Sprintf("%s port %d of %v", proto, r.Port, r.Addr)
	}
	return fmt.Sprintf("%s ports %d to %d of %v", proto, r.Port, int(r.Port)+r.ports()-1, r.Addr)
}

// Validate says in one sentence what is wrong with r, or nil.
func (r HostRule) Validate() error {
	n := r.Ports
	switch {
	case r.Priority >= hostPriorities:
		return errorf(ErrConfig, "rule for %v: its priority is %v, the last is %v", r, r.Priority,
			PriorityBlock)
	case r.Proto != protoTCP && r.Proto != protoUDP:
		return errorf(ErrConfig, "rule for %v: only TCP (6) and UDP (17) have ports", r)
	case !r.Addr.IsValid() || r.Addr.Zone() != "" || r.Addr.Is4In6():
		return errorf(ErrConfig, "rule for %v: give an IPv4 or IPv6 address, without a zone", r)
	case r.Addr.IsUnspecified() || r.Addr.IsMulticast():
		return errorf(ErrConfig, "rule for %v: give one address of the netdev", r)
	case n < 0 || n > 1<<15 || n&(n-1) != 0 || int(r.Port)%r.ports() != 0 || r.Port == 0:
		return errorf(ErrConfig, "rule for %d ports from %d on: give a power of two that divides "+
			"the first port", n, r.Port)
	}
	return nil
}

// class is the number of the target, in the order of classes.
func (r HostRule) class() int {
	i := 0
	if r.Proto == protoUDP {
		i++
	}
	if r.Addr.Is6() {
		i += 2
	}
	return i
}

// inUse makes the kernel's EEXIST about a rule a sentence: a rule with the same match and another
// tag is there. Which, the kernel tells its log only.
func (d *Device) inUse(r HostRule, err error) error {
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("rule for %v: %w", r, err)
	}
	return &refusal{unix.EADDRINUSE, err,
		fmt.Sprintf("%v is steered by another process (tag %#06x "+
			"is ours, that of the other is in the kernel's log): stop it, or use another port", r,
			d.flowTag)}
}
