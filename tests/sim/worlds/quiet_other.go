//go:build !linux

package main

import "time"

// quietMonitor does nothing.
func quietMonitor() {}

// processorTime is not known.
func processorTime(int) time.Duration { return 0 }
