// Package simnic is a ConnectX made of Go: the NIC side of the rings that a
// driver writes.
//
// The core is a set of objects with the names the hardware uses: memory keys
// (MKey), completion queues (CQ), send and receive queues (SQ, RQ), indirection
// tables (RQT), transport receive objects (TIR) and flow rules (Flow). Another
// package creates them for its driver and tells the core when a doorbell was
// written: package kernel for a driver in this process, that uses the uverbs
// calls, and package pcie for one in a virtual machine. Everything else the core
// reads from and writes to memory, as silicon would: it checks each address
// against a memory key, each descriptor against the rules of the device, and
// answers a mistake with the same error completion.
//
// A frame enters at one of three places: the wire, the netdev port (what Linux
// would have of the NIC) or a send queue. It leaves to one or more of the same
// three. Counters account for every copy of it; Counters.Check says whether
// they add up.
//
// Config.Function puts an e-switch in front: what the wire brings then reaches the
// NIC only if the lists of its vport context have the address. A driver in a virtual
// machine writes them; in this process kernel.PacketSocket does.
//
// A doorbell acts on the goroutine that writes it: it executes what was posted,
// and delivers it at the other end of a wire.Pair. Only when a frame has had to
// wait for a receiver does a goroutine of the NIC take over the send queue, until
// nothing has waited for 100 ms.
//
//	nic, err := simnic.New(simnic.Config{})
//	tap, err := wire.OpenTAP("slice0")             // or Pair, OpenPacket, NewReplay
//	err = nic.ConnectWire(wire.WithFaults(tap, c)) // and Capture, in any order
//	node, err := kernel.Opener(nic)()
//	ctx, err := uverbs.Open(node, uverbs.Options{}) // from here on as with hardware
//
// Faults can be injected: on the wire with wire.WithFaults, between the rings and
// the device with NIC.Inject, at the port and the device with NIC.SetLink,
// NIC.FailDevice and CQ.Fail.
//
// Locks are taken in the order SQ, its doorbell, RQ, CQ, one of each at most, and none covers
// the NIC as a whole, so that two NICs may be wired back to back and both send.
// A wire may call back into a NIC from inside Send.
//
// Sources: linux 6.12 drivers/net/ethernet/mellanox/mlx5 and
// include/linux/mlx5/device.h, rdma-core providers/mlx5, and the drivers of DPDK
// and VPP for how the rings are used. What no public driver shows is marked
// "model's choice" where it is decided.
package simnic
