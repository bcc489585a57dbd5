package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/uverbs"

// Release is the age of the Linux that Linux plays.
type Release uint8

// Releases that differ in what a client sees. Between them nothing does that
// the commands of package uverbs depend on.
const (
	Linux612 Release = iota // 5.6 to 6.14
	Linux54                 // before 5.6: no native GET_CONTEXT, EINVAL for unknown handles
	Linux72                 // 6.15 and later: INVOKE_WRITE(GET_CONTEXT) is broken, unknown driver data is refused
)

// LinuxConfig describes the machine around the NIC. The zero value is a recent
// Linux and a process that may do everything.
type LinuxConfig struct {
	Release Release

	NoNetRaw bool // the process lacks CAP_NET_RAW
	NoRawIO  bool // the process lacks CAP_SYS_RAWIO

	// Memlock is how many bytes the process may pin; 0 means no limit
	// (CAP_IPC_LOCK), a negative number a limit of nothing at all.
	Memlock int64

	InfiniBand       bool   // the port's link layer
	NoWriteCombining bool   // the machine maps device memory uncached only
	DriverID         uint32 // of the RDMA driver, default that of mlx5
	Vectors          uint32 // completion vectors, default 8

	// PartID is the PCI device id, default 0x101d (ConnectX-6 Dx), Firmware its
	// version as major, minor, sub-minor, default 22.43.2026.
	PartID   uint32
	Firmware [3]uint16
}

func (c LinuxConfig) withDefaults() LinuxConfig {
	if c.DriverID == 0 {
		c.DriverID = uverbs.DriverMLX5
	}
	if c.Vectors == 0 {
		c.Vectors = 8
	}
	if c.PartID == 0 {
		c.PartID = 0x101d
	}
	if c.Firmware == [3]uint16{} {
		c.Firmware = [3]uint16{22, 43, 2026}
	}
	return c
}

// Opener returns what opens the NIC's device node on a Linux of default
// configuration, in the form that dv.Config.Kernel has: the node answers as a
// stock kernel would, from the ioctl down. Each call is another open of the node,
// as by another process.
func Opener(n *NIC) func() (uverbs.Kernel, error) {
	return NewLinux(n, LinuxConfig{}).OpenNode
}
