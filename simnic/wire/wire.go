// Package wire has what the port of a software NIC is connected to: the two ends of a cable in
// memory (Pair), a TAP interface, a packet socket, a capture file (NewReplay). Capture and
// WithFaults wrap any of them, in any order: the one records every frame, the other drops,
// duplicates, reorders, delays or corrupts frames by a seeded random sequence.
//
// A wire carries frames in batches on the goroutine of the sender. Each type says
// which frames it takes unsegmented or without checksum (Wire.Offloads).
package wire

import "github.com/rdma-netstack/rdma-netstack/simnic/frame"

// Wire connects a port of a NIC.
type Wire interface {
	// Start begins reception: recv is called with frames in order of arrival, in batches so that
	// the device can coalesce. It may be called from several goroutines at once, and from inside
	// Send of the other end. recv takes nothing from the caller after it returns.
	Start(recv func([]frame.Frame)) error
	// Send carries the frames, in order. It may be called from any goroutine and
	// must not keep the data. It returns how many frames were carried: the first
	// n; an error says why the rest was not.
	Send(frames []frame.Frame) (n int, err error)
	// Offloads says which frames Send takes beside ordinary ones. What it does
	// not name is cut up and completed by the caller.
	Offloads() frame.Offload
	// Close stops reception: no recv is running or will be called after it
	// returns. Closing twice is allowed.
	Close() error
}
