// Package dv drives the Ethernet side of an mlx5 NIC (ConnectX-4 and later) from user space, by
// writing the NIC's own descriptor rings ("Direct Verbs"). The kernel driver sets objects up and
// keeps the port's netdev; frames for the device's own MAC address, and a copy of broadcast and
// multicast, come to us. There is no TCP/IP here: package link/rdma puts a stack on top.
//
// # The life of a frame
//
// Receiving. Every frame buffer has one owner at a time:
//
//	pool ──Refill──▶ receive ring ──▶ NIC writes bytes, then a completion
//	  ▲                                         │
//	  │                                       Poll
//	  └──────────Release────────── caller ◀─────┘
//
// RxQueue.Poll hands out Packets; their Data is the NIC's own buffer (of a jumbo frame the first of
// several, see Packet.More) and the caller's until it gives them back with Release (or sends them
// on with TxQueue.PostFrame). Refills happen in batches inside Release.
//
// Sending. TxQueue.Post copies the caller's bytes: into the descriptor itself when they are few,
// else into the queue's staging memory. The caller keeps its buffers. PostFrame copies nothing: the
// NIC reads the frame where it is, and it goes back to the pool on completion. Neither is visible
// to the NIC before Flush, which rings the doorbell once for all that was posted; Reclaim consumes
// completions and frees what they cover.
//
// Waiting. RxQueue.Arm asks for an event, one more Poll closes the race, Wait
// parks the goroutine in the netpoller.
//
// No call on this path enters the kernel (Wait apart) and none allocates.
//
// # Ownership and concurrency
//
// An RxQueue has one owner, the goroutine that polls it; only Wake, Stats and the constants may be
// used by others. A TxQueue is not safe for concurrent use either, but has Lock and Unlock for the
// common case of many senders; Device.Close takes the same lock. The owner of an RxQueue, and a
// user of a TxQueue without its lock, must have stopped before Device.Close: call Device.Stop,
// which makes Poll return 0 and Wait return ErrClosed, and join them. Close also takes back the
// memory behind every Packet still held.
//
// # Glossary
//
//	WQE    work queue element: one descriptor in a send or receive ring
//	BB     basic block, 64 bytes: the unit of a send ring; a WQE takes 1 to 15
//	DS     16 bytes, the unit a WQE's length is given in
//	CQE    completion queue element, 64 bytes, written by the NIC
//	CQ     completion queue: a ring of CQEs; the owner bit in the last byte
//	       tells passes apart
//	QP     queue pair; a raw packet QP here carries a send queue (SQ) only
//	WQ     work queue; here a receive ring
//	lkey   number of a registered memory region, named by each data pointer
//	dbrec  doorbell record: 8 bytes of memory with a queue's counters, which
//	       the NIC reads when it likes
//	UAR    a page of device registers: send doorbells and CQ arming
//	BF     BlueFlame: a doorbell that carries the descriptor it is for
//	eMPW   multi-packet send: one descriptor for many frames with the same flags
//	SGE    segment: one of several buffers that a receive descriptor names
//	slab   receive buffer of a striding ring, which holds many frames
//	LSO    large send offload (TSO): the NIC cuts TCP segments
//	RSS    receive side scaling: the NIC chooses the receive queue by a hash
//
// # Sources
//
// Byte layouts come from rdma-core (providers/mlx5/mlx5dv.h), linux
// (include/uapi/rdma, include/linux/mlx5, drivers/net/ethernet/mellanox/mlx5),
// the VPP rdma plugin and DPDK's mlx5 driver, read as documentation. Package
// dv/mlx5 has the descriptors, package dv/uverbs the kernel calls.
package dv
