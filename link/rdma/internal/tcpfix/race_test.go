//go:build race

package tcpfix

// raceDetector: sync.Pool drops items on purpose, so that allocation counts are meaningless.
const raceDetector = true
