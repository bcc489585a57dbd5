// Package rig builds and runs the virtual machines in which stock Linux kernels test the software
// ConnectX.
//
// It fetches, by Debian package name and from the mirror that this machine's own apt already uses,
// a QEMU that speaks vfio-user (10.1 or later), unmodified kernels with their mlx5 modules, and
// rdma-core's own tools. Nothing is installed: packages are unpacked below the user's cache
// directory. It then packs an initramfs whose init is a static Go binary, and runs QEMU under
// software emulation, so neither root nor KVM is needed.
//
//	apt.go        a private apt: mirror, suites, signatures, download
//	unpack.go     packages to a directory tree, once
//	kernel.go     which kernel package, its image, the closure of its modules
//	elf.go        the shared libraries a program needs
//	cpio.go       the newc archive format of an initramfs
//	initramfs.go  what goes into it
//	qemu.go       the version wanted, the command line
//	vm.go         the run, from boot to power off
//	agent.go      requests to the guest, over its second serial line
//	watch.go      a machine that is over: who died, with both logs
package rig
