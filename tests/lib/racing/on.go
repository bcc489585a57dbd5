//go:build race

package racing

// Detector says that the race detector is on.
const Detector = true
