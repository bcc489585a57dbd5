//go:build !race

package hdrtest

// RaceDetector says that the race detector is off.
const RaceDetector = false
