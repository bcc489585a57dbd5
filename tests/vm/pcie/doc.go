// Package pcie presents the software ConnectX to a virtual machine as a PCI function. An unmodified
// Linux kernel drives it with its mlx5 driver.
//
// A virtual machine monitor that speaks vfio-user (QEMU 10.1 and later) connects to a unix
// socket. Guest memory arrives as file descriptors and is mapped here; register accesses
// arrive as messages; interrupts go back as eventfd writes. The registers lead to the firmware
// interface: initialisation segment, command queue, event queues. The commands create objects of
// package simnic, the same ones that package kernel creates: queues, memory keys, steering and
// offloads are implemented once.
//
//	message.go  the vfio-user wire format
//	server.go   one connection: messages to register accesses, memory maps, interrupts
//	dma.go      guest physical addresses to host memory
//	irq.go      MSI-X vectors
//	config.go   PCI configuration space
//	bar.go      BAR 0: initialisation segment, command doorbell, UAR pages
//
// Sources: the vfio-user protocol specification (QEMU docs/interop/vfio-user.rst), PCI
// Express Base Specification 7.5 and 7.7, linux 6.12 include/linux/mlx5/device.h and
// drivers/net/ethernet/mellanox/mlx5/core.
package pcie
