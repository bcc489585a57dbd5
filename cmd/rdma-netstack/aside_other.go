//go:build !linux

package main

// standAside does nothing outside Linux.
func standAside() {}
