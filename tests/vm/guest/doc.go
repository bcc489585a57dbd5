//go:build linux

// Command guest is PID 1 of a test virtual machine: it mounts what programs expect, loads the
// kernel's mlx5 modules and then does what the host asks, one JSON line per request on the second
// serial port. The tests themselves, what is expected and why, are on the host's side (tests/vm).
//
// It is one static binary and needs nothing else in the initramfs.
package main
