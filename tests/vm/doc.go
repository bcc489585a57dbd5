// Package vm tests the software ConnectX and the driver under stock Linux kernels.
//
// A virtual machine boots an unmodified Debian kernel whose own mlx5 modules bind the model, which
// is a PCI function to it (tests/vm/pcie). The port's wire ends in a TAP of a network namespace on
// the host, with ordinary clients. In the guest three users share the port: the kernel's netdev,
// rdma-core's tools through libmlx5, and our own binary through /dev/infiniband/uverbs0.
//
//	          guest                                            host
//	eth0 (mlx5e)      10.77.0.2 ─┐                       ┌─ namespace "outside"
//	rdma-netstack     10.77.0.3 ─┼─ mlx5_core ═ vfio-user ═ simnic ─ TAP 10.77.0.1: ping, curl
//	ibv_devinfo, perftest       ─┘
//
// make test-vm runs it for all kernels, make test-vm KERNEL=6.12 for one.
package vm
