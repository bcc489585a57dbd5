//go:build !race

package racing

// Detector says that the race detector is off.
const Detector = false
