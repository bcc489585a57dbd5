//go:build race

package stack

// raceDetector: sync.Pool drops items at random, so that allocations cannot be counted.
const raceDetector = true
