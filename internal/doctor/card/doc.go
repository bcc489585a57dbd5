// Package card tries out a card that this driver has not met before: it opens the device, sends and
// receives through its rings, makes one descriptor fail on purpose, and reports what it saw, with
// the bytes of descriptors and completions, so that somebody without that card can judge them.
//
// The driver is the ordinary one, package dv. What it does not show is observed from both sides:
// the kernel calls pass through a tap, which learns where the rings are, and the rings are read
// where they lie in memory. See checks.go for the list.
//
// Frames for the card come from the other end of its cable where there is one to be had, as with
// the software ConnectX, and else from Linux's side of the same port: mlx5_ib switches loopback
// between the users of a port on as soon as a second user context is open (linux
// drivers/infiniband/hw/mlx5/main.c, mlx5_ib_enable_lb), and Run opens one.
package card
