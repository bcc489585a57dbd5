// Package uverbs is the kernel control path of an mlx5 NIC in pure Go: it creates and controls raw
// Ethernet queues through /dev/infiniband/uverbsN, without rdma-core and without cgo.
//
// The objects depend on each other like this; an arrow points at the object that must outlive the
// one at its tail:
//
//	Flow ─> RSS QP ─> IndTable ─> WQ ─┐
//	                                  ├─> CQ ─> CompChannel ─┐
//	              raw QP (transmit) ──┘                      ├─> Context ─> Kernel (the node)
//	              MR, QP, WQ ─────────────> PD ──────────────┘
//
// Each object has Close, which may be called twice and concurrently, and which fails with EBUSY
// (and leaves the object alone) while another object still uses it. Context.Close closes all
// objects at once: the kernel destroys the remaining ones in the right order.
//
// Every command is one ioctl whose bytes live in memory outside the Go heap (one scratch region per
// Context, under a mutex). The seam below is Kernel: the real node, the software NIC of simnic,
// and a recorded conversation answer the same bytes. The structs in abi_core.go and abi_mlx5.go are
// the kernel's own, checked against the C headers by abi_test.go; both sides of the seam use them.
//
// Memory given to a Context (rings, doorbell records, frames) is the caller's. It may be freed or
// reused only after the object that was given it was closed without error, or after Context.Close.
//
// Sources: linux include/uapi/rdma, drivers/infiniband/core/uverbs_*.c, drivers/infiniband/hw/mlx5
// (5.4 to 7.3), and rdma-core providers/mlx5 for what the established client does.
package uverbs
