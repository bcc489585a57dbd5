//go:build !race

package tcpfix

const raceDetector = false
