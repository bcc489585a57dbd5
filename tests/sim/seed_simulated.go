//go:build simulated

package sim

import "runtime"

// seedRuntime has everything that the Go runtime draws follow from seed: which of several ready
// cases a select takes, and the order of maps. See package build.
func seedRuntime(seed uint64) { runtime.Simulate(seed) }
