// Package simnic is a software ConnectX: the NIC side of the rings that a driver writes.
//
// The core is a set of objects with the names the hardware uses: memory keys (MKey), completion
// queues (CQ), send and receive queues (SQ, RQ), indirection tables (RQT), transport receive
// objects (TIR) and flow rules (Flow). Another package creates them for its driver and tells the
// core when a doorbell was written: package kernel for a driver in this process that uses uverbs,
// and package pcie for one in a virtual machine. The core reads all other input from memory and
// writes its output there, as hardware does: it checks each address against a memory key and each
// descriptor against the rules of the device, and reports a mistake with the same error completion.
//
// A frame enters at one of three places: the wire, the netdev port (Linux's interface of the NIC)
// or a send queue. It leaves to the wire, the netdev port or receive queues, or several of them.
// Counters account for every copy of it; Counters.Check verifies their sums.
//
// Config.Function adds an e-switch between wire and NIC: a frame from the wire then reaches the NIC
// only if the lists of its vport context have the address. A driver in a virtual machine writes
// them; in this process kernel.PacketSocket does.
//
// The goroutine that writes a doorbell executes the posted WQEs, and delivers the frames at the
// other end of a wire.Pair. If a frame has to wait for a receiver, a goroutine of the NIC executes
// the send queue until no frame has waited for 100 ms.
//
//	nic, err := simnic.New(simnic.Config{})
//	tap, err := wire.OpenTAP("slice0")             // or Pair, OpenPacket, NewReplay
//	err = nic.ConnectWire(wire.WithFaults(tap, c)) // and Capture, in any order
//	node, err := kernel.Opener(nic)()
//	ctx, err := uverbs.Open(node, uverbs.Options{}) // from here on as with hardware
//
// Faults can be injected: on the wire with wire.WithFaults, between the rings and the device with
// NIC.Inject, at the port and the device with NIC.SetLink, NIC.FailDevice and CQ.Fail.
//
// Locks are taken in the order SQ, its doorbell, RQ, CQ, one of each at most, and no lock covers
// the whole NIC, so that two NICs may be connected back to back and both send. A wire may call back
// into a NIC from inside Send.
//
// Sources: linux 6.12 drivers/net/ethernet/mellanox/mlx5 and include/linux/mlx5/device.h, rdma-core
// providers/mlx5, and the drivers of DPDK and VPP for how the rings are used. Behaviour that no
// public driver shows is marked "model's choice" in the code.
package simnic
