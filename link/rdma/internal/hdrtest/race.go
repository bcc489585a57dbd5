//go:build race

package hdrtest

// RaceDetector says that the race detector is on: sync.Pool drops items on purpose, so that counts
// of allocations are meaningless.
const RaceDetector = true
