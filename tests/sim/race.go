//go:build race

package sim

// raceDetector: it takes looks at the fields of package dv, which nothing orders, for races.
const raceDetector = true
