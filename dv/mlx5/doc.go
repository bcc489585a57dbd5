// Package mlx5 is the bytes that a driver and a ConnectX exchange in memory:
// send and receive descriptors (WQE), completions (CQE) and doorbell words.
// Every function is pure: bytes in, numbers out, or the other way round.
//
// Each structure has one field table (name, byte, high bit, low bit), a
// Layout: CtrlLayout, EthLayout, DataLayout, CQELayout, ErrorCQELayout and so
// on. The tables print structures, are how a model of the NIC may set single
// fields, and are what the fast encoders and accessors beside them are tested
// against. The tables in turn are tested against the vendor's own header and
// encoders.
//
// The vocabulary, once:
//
//	WQE       work queue entry: a descriptor in a send or receive ring
//	DS        16 bytes, the unit a send WQE counts its length in
//	BB        basic block, 64 bytes: the unit a send ring counts in
//	CQE       completion queue entry, 64 bytes
//	SQN, QPN  number of a send queue, of a queue pair; 24 bits
//	lkey      local key: names a registered memory region in a descriptor
//	uidx      user index: 24 bits chosen at creation, echoed in CQEs
//
// Everything is big-endian. Nothing here knows about rings: phases, wrap and
// doorbell order are written in the driver and, again, in the model.
//
// Sources: the PRM as far as public headers carry it (rdma-core
// providers/mlx5/wqe.h and mlx5dv.h, linux include/linux/mlx5/qp.h and
// device.h), compared with the VPP rdma plugin and DPDK's mlx5_prm.h.
package mlx5
