//go:build race

package stack

// raceDetector: sync.Pool forgets at random, so that allocations cannot be counted.
const raceDetector = true
