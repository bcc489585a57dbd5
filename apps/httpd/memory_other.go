//go:build !linux

package httpd

import "math"

// machineMemory is unknown here: no limit.
func machineMemory() int64 { return math.MaxInt64 }
