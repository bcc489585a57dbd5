//go:build !race

package sim

// raceDetector is off.
const raceDetector = false
