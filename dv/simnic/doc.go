// Package simnic is a ConnectX made of Go: the NIC side of the rings that a
// driver writes, the kernel side of the uverbs calls that set them up, and the
// wires its port can be plugged into.
//
// The core is a set of objects with the names the hardware uses: memory keys
// (MKey), completion queues (CQ), send and receive queues (SQ, RQ), indirection
// tables (RQT), transport receive objects (TIR) and flow rules (Flow). A face
// creates them for its driver and tells the core when a doorbell was rung.
// Everything else the core reads from and writes to memory, as silicon would:
// it checks each address against a memory key, each descriptor against the
// rules of the device, and answers a mistake with the same error completion.
//
// A frame enters at one of three places: the wire, the netdev side (what Linux
// would have of the port) or a send queue. It leaves to one or more of the same
// three. Counters account for every copy of it; Counters.Check says whether
// they add up.
//
// A driver in this process meets the NIC through its device node: kernel.Opener,
// or Linux.OpenNode for a machine that lacks something. The node answers the
// ioctls of a stock kernel byte for byte, gives out event descriptors, and its
// doorbell pages act on the goroutine that stores into them: it executes what was
// posted, and delivers it at the other end of a Pair. Only when a frame has had to
// wait for a receiver does a goroutine of the NIC take over the send queue, until
// nothing has waited for 100 ms.
//
//	nic, err := simnic.New(simnic.Config{})
//	tap, err := simnic.OpenTAP("slice0")            // or Pair, OpenPacket, NewReplay
//	wire := simnic.WithFaults(tap, faults)          // and Capture, in any order
//	err = nic.ConnectWire(wire)
//	node, err := kernel.Opener(nic)()
//	ctx, err := uverbs.Open(node, uverbs.Options{}) // from here on as with hardware
//
// What can go wrong can be made to: on the wire with WithFaults, between the
// rings and the device with NIC.Inject, with the port and the device with
// NIC.SetLink, NIC.FailDevice and CQ.Fail.
//
// Locks are taken in the order SQ, its bell, RQ, CQ, one of each at most, and none covers
// the NIC as a whole, so that two NICs may be wired back to back and both send.
// A wire may call back into a NIC from inside Send.
//
// Sources: linux 6.12 drivers/net/ethernet/mellanox/mlx5 and
// include/linux/mlx5/device.h, rdma-core providers/mlx5, and the drivers of DPDK
// and VPP for how the rings are used. What no public driver shows is marked
// "model's choice" where it is decided.
package simnic
