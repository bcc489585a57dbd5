package stack

// growStack makes the goroutine's stack grow at once to what answering a request takes: net/http
// and netstack have frames of up to 3 KiB, 20 KiB together. By itself it doubles three times, each
// time with twenty to forty frames to adjust. It is called for a connection's first data, so that
// idle ones keep small stacks, and by a dial. caller is not nil.
//
//go:noinline
func growStack(caller any) {
	if caller == nil { // what counts is the size of the frame
		useFrame(new(stackFrame))
	}
}

// stackFrame takes what stacks grow by, at least.
type stackFrame [20 << 10]byte

//go:noinline
func useFrame(*stackFrame) {}
