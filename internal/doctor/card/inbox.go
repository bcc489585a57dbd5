package card

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// inboxFrames bounds what an inbox keeps: a busy port sees more than is of interest.
const inboxFrames = 4096

// inbox keeps what comes out at one end of a wire.
type inbox struct {
	mu      sync.Mutex
	got     [][]byte
	stopped bool
}

// newInbox starts reception from w; nil without one.
func newInbox(w wire.Wire) (*inbox, error) {
	if w == nil {
		return nil, nil
	}
	in := &inbox{}
	if err := w.Start(in.keepFrames); err != nil {
		return nil, fmt.Errorf("receive beside the card: %w", err)
	}
	return in, nil
}

func (in *inbox) keepFrames(frames []frame.Frame) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, f := range frames {
		if !in.stopped && len(in.got) < inboxFrames {
			in.got = append(in.got, bytes.Clone(f.Data))
		}
	}
}

// hasReceived reports whether a frame like this came, and forgets all that came before it.
func (in *inbox) hasReceived(like func(frame []byte) bool) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i, f := range in.got {
		if like(f) {
			in.got = in.got[i+1:]
			return true
		}
	}
	return false
}

// stopKeeping ends the keeping; a nil inbox may be stopped.
func (in *inbox) stopKeeping() {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.got, in.stopped = nil, true
}
