//go:build !linux

package memlimit

import "math"

// machineMemory returns no limit: it is unknown here.
func machineMemory() int64 { return math.MaxInt64 }
