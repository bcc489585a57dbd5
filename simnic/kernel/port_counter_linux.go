package kernel

import (
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// isHWCounter reports whether a counter of the NIC is one of those that the RDMA device has in
// sysfs, as the default set of queue counters (basic_q_cnts and extended_err_cnts of linux
// drivers/infiniband/hw/mlx5/counters.c). The others are the netdev's.
func isHWCounter(name string) bool {
	switch name {
	case "out_of_buffer", "resp_local_length_error", "resp_cqe_error", "req_cqe_error",
		"resp_cqe_flush_error", "req_cqe_flush_error":
		return true
	}
	return false
}

var _ uverbs.PortCounters = (*node)(nil)

// PortCounter is sysfs: ports/<port>/hw_counters/<name> of the RDMA device.
func (n *node) PortCounter(port uint8, name string) (uint64, error) {
	if n.gone.Load() {
		return 0, unix.EBADF
	}
	if port == 1 && isHWCounter(name) {
		for _, c := range n.nic.Counters().Linux() {
			if c.Name == name {
				return c.Value, nil
			}
		}
	}
	return 0, &fs.PathError{Op: "open", Path: "hw_counters/" + name, Err: unix.ENOENT}
}
