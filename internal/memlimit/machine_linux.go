package memlimit

import (
	"math"
	"math/bits"
	"syscall"
)

// machineMemory returns the machine's memory in bytes (sysinfo(2)), without a limit if that is
// unknown.
func machineMemory() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return math.MaxInt64
	}
	over, total := bits.Mul64(uint64(info.Totalram), uint64(info.Unit))
	if over != 0 || total > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(total)
}
