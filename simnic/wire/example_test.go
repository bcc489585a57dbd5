package wire_test

import (
	"fmt"
	"log"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// One end of a cable loses a quarter of the frames. The same seed loses the same
// frames again.
func ExampleWithFaults() {
	faults, err := wire.ParseFaults("drop=25%,seed=7")
	if err != nil {
		log.Fatal(err)
	}
	near, far := wire.Pair()
	lossy := wire.WithFaults(near, faults)
	defer lossy.Close()
	arrived := uint64(0)
	if err := far.Start(func(frames []frame.Frame) { arrived += uint64(len(frames)) }); err != nil {
		log.Fatal(err)
	}
	for range 100 {
		if _, err := lossy.Send([]frame.Frame{{Data: make([]byte, frame.MinFrame)}}); err != nil {
			log.Fatal(err)
		}
	}
	sent, _ := lossy.Stats()
	fmt.Println(sent.Frames, sent.Frames-sent.Dropped == arrived)
	// Output: 100 true
}
