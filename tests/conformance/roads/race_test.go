//go:build race

package roads

// raceDetector says whether the tests run with it.
const raceDetector = true
