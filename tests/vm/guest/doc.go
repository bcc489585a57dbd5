//go:build linux

// Command guest is PID 1 of a test virtual machine: it mounts the usual file systems, loads the
// kernel's mlx5 modules and then executes the host's requests, one JSON line per request on the
// second serial port. The tests themselves, with the expected results, are on the host's side
// (tests/vm).
//
// It is one static binary and needs nothing else in the initramfs.
package main
