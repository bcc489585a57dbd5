package card

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// Frames of the compression check: several passes over a completion ring of ringSize entries,
// whole, though eight or more frames share an entry, in bursts that the ring holds.
const (
	burst  = 32
	bursts = 32
)

// compression receives more frames than the completion ring has entries for, in bursts that are
// alike, so that their completions come compressed; none may be missing, doubled or out of order.
func (s *session) compression() (string, error) {
	if s.source == nil {
		return "", skip("no frames come in")
	}
	for _, f := range s.dev.Features() {
		if f.Name == "completion compression" && !f.On {
			return "", skip("off: " + f.Why)
		}
	}
	before := s.dev.Stats().Rx[0]
	for i := range bursts {
		if err := s.receiveBurst(); err != nil {
			return "", fmt.Errorf("burst %d of %d: %w", i+1, bursts, err)
		}
	}
	after := s.dev.Stats().Rx[0]
	_, recv := s.tap.newestQueues()
	compressed := after.Compressed - before.Compressed
	s.noteFact("frames", "%d, of which %d compressed; ring of %d completions", bursts*burst,
		compressed,
		recv.cq.entries)
	switch {
	case after.Drops != before.Drops || after.Resets != before.Resets:
		return "", fmt.Errorf("the driver refused completions: %+v, and reset the queue %d times",
			after.Drops, after.Resets-before.Resets)
	case compressed == 0:
		return "", skip("on, and no completion came compressed: the frames came one by one")
	}
	return fmt.Sprintf("%d frames came in order, %d of them compressed", bursts*burst,
		compressed), nil
}

// receiveBurst sends a burst and wants it in order, whole.
func (s *session) receiveBurst() error {
	first, err := s.toCard(s.dev.MAC(), burst, minFrame)
	if err != nil {
		return err
	}
	seqs := s.fromCard(burst, func(*dv.Packet) {})
	if len(seqs) < burst {
		return fmt.Errorf("%d of %d frames came in %v", len(seqs), burst, s.cfg.Patience)
	}
	for i, seq := range seqs {
		if want := first + uint32(i); seq != want {
			return fmt.Errorf("frame %d came in the place of %d", seq-first, i)
		}
	}
	return nil
}
