//go:build !simulated

package sim

// seedRuntime does nothing: the Go runtime is as it is.
func seedRuntime(uint64) {}
