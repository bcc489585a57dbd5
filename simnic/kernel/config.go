// Package kernel implements the Linux uverbs device node of a software NIC. It executes ioctls with
// the byte-exact results of an unmodified kernel, pins memory, creates event descriptors, and
// passes stores to doorbell pages on to the NIC on the goroutine that stores.
//
//	nic := dv.NIC{Model: dv.Model{Kernel: kernel.Opener(card)}}
//
// A Config selects another release or a machine without a capability. Close of the node destroys
// all objects created through it.
//
// Sources: linux 6.12 drivers/infiniband/core/uverbs_*.c and drivers/infiniband/hw/mlx5.
package kernel

import (
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Release names the range of kernel versions that a Linux behaves as.
type Release uint8

// Releases that differ in what a client sees. Versions within one release do not differ in anything
// that the commands of package uverbs depend on.
const (
	Linux612 Release = iota // 5.6 to 6.14
	Linux54                 // before 5.6: no native GET_CONTEXT, EINVAL for unknown handles
	Linux72                 // 6.15 and later: no INVOKE_WRITE(GET_CONTEXT), no unknown driver data
)

// Config describes the machine around the NIC. The zero value is a recent Linux and a process with
// all capabilities.
type Config struct {
	Release Release

	NoNetRaw bool // the process lacks CAP_NET_RAW
	NoRawIO  bool // the process lacks CAP_SYS_RAWIO

	// Memlock says how many bytes the process may pin; 0 means no limit
	// (CAP_IPC_LOCK), a negative number a limit of zero bytes.
	Memlock int64

	InfiniBand       bool   // the port's link layer
	NoWriteCombining bool   // the machine maps device memory uncached only
	DriverID         uint32 // of the RDMA driver, default that of mlx5
	Vectors          uint32 // completion vectors, default 8

	// EventQueues has the node report events in queues of this process instead of descriptors, see
	// uverbs.EventQueues. For simulations: no goroutine waits in the network poller then.
	EventQueues bool
}

func (c Config) withDefaults() Config {
	if c.DriverID == 0 {
		c.DriverID = uverbs.DriverMLX5
	}
	if c.Vectors == 0 {
		c.Vectors = 8
	}
	return c
}

// Opener returns a function for dv.Config.Kernel that opens the NIC's device node on a Linux with
// the default configuration. The node executes each ioctl as an unmodified kernel does. Each call
// is another open of the node, as by another process.
func Opener(n *simnic.NIC) func() (uverbs.Kernel, error) {
	return New(n, Config{}).OpenNode
}
