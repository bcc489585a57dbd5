package card

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// completionCounters goes around both rings once and looks at how completions name descriptors:
// by a counter that runs on (16 bits), or by the place in the ring.
func (s *session) completionCounters() (string, error) {
	if s.source == nil {
		return "", skip("no frames come in")
	}
	for range ringSize + 6 {
		if _, _, err := s.receiveOne(); err != nil {
			return "", fmt.Errorf("after %d frames: %w", s.got, err)
		}
		if err := s.sendOne(); err != nil {
			return "", err
		}
	}
	sq, rq := s.tap.newestQueues()
	recv, err1 := counterForm(s.lastCount, uint16(s.got-1), rq.ring.entries)
	send, err2 := counterForm(s.sendCount, s.sendIndex, sq.ring.entries)
	s.noteFact("receive", "wqe_counter %d for frame %d", s.lastCount, s.got-1)
	s.noteFact("send", "wqe_counter %d for the WQE with index %d", s.sendCount, s.sendIndex)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	return fmt.Sprintf("wqe_counter of received frames is %s, of sent ones %s", recv, send), nil
}

// counterForm says which form of counter got is, where the descriptor's running index is n.
func counterForm(got, n uint16, ring int) (string, error) {
	switch place := n % uint16(ring); {
	case got == n && got == place:
		return "either form", nil
	case got == n:
		return "a counter that runs on", nil
	case got == place:
		return "the place in the ring", nil
	}
	return "", fmt.Errorf("wqe_counter is %d, neither the count %d nor its place in a ring of %d",
		got, n, ring)
}

// sendOne sends one frame and takes its completion.
func (s *session) sendOne() error {
	p, err := s.postQuietly(markedFrame(nearest, s.dev.MAC(), s.nextSeq(), minFrame))
	if err != nil {
		return err
	}
	cqe, err := s.completion()
	if err != nil {
		return err
	}
	s.sendIndex, s.sendCount = uint16(mlx5.CtrlIndex.Get(p.bytes)), cqe.WQECounter()
	if _, err := counterForm(s.sendCount, s.sendIndex, p.ring.entries); err != nil {
		return err
	}
	if n := s.dev.Tx(0).Reclaim(); n != 1 {
		return fmt.Errorf("the driver made %d packets of a completion: %s", n, cqe.String())
	}
	return nil
}
