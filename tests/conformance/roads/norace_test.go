//go:build !race

package roads

const raceDetector = false
