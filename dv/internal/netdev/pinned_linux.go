package netdev

import (
	"os"
	"strconv"
	"strings"
)

// PinnedBytes returns the memory this process has pinned, as the kernel counts it
// against RLIMIT_MEMLOCK.
func PinnedBytes() uint64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return parsePinned(string(status))
}

// parsePinned finds "VmPin:   1234 kB".
func parsePinned(status string) uint64 {
	_, rest, ok := strings.Cut(status, "\nVmPin:")
	if !ok {
		return 0
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
