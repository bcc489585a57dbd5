//go:build race

package tcpfix

// raceDetector: sync.Pool forgets things on purpose, so that allocation counts mean nothing.
const raceDetector = true
