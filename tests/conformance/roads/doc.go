// Package roads measures TCP on the paths that people have: long ones, with losses, with frames
// that are late, with a bottleneck and its queue, with hosts that pause. A [Road] describes one, a
// [Relay] carries the frames of two hosts over it, by a seed.
//
// `make test-roads` prints the table: Linux and the product in turns on the same road and seed, in
// network namespaces, on the system's time. The worlds of this package have two stacks of the
// product on virtual time, whose rates are exact; `go test` compares those with bounds.
package roads
