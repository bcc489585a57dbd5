//go:build race

package rdma

// raceDetector: sync.Pool drops items on purpose, so that allocation counts are meaningless.
const raceDetector = true
