//go:build !linux

package main

// quietMonitor does nothing.
func quietMonitor() {}
