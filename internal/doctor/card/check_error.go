package card

import (
	"encoding/binary"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Long enough not to fit its descriptor, so that the card has to fetch it by an lkey.
const fetchedFrame = 600

// sendError changes the lkey of a posted descriptor to one that nobody has. The card must answer
// with an error completion, the driver replace the queue, and the next frame go.
func (s *session) sendError() (string, error) {
	before := s.dev.Stats().Tx[0]
	p, err := s.postQuietly(markedFrame(nearest, s.dev.MAC(), s.nextSeq(), fetchedFrame))
	if err != nil {
		return "", err
	}
	wqe := p.bytes
	data := int(mlx5.CtrlDS.Get(wqe))*mlx5.DSSize - mlx5.DataSegSize
	lkey := uint32(mlx5.DataLKey.Get(wqe[data:]))
	// where the lkey is in a data segment
	if err := writeMemory(p.byteAddr(data+4),
		binary.BigEndian.AppendUint32(nil, ^lkey)); err != nil {
		return "", err
	}
	cqe, err := s.completion()
	s.noteWQE(p)
	s.noteFact("WQE, data segment", "%s", mlx5.DataLayout.String(wqe[data:]))
	if err != nil {
		return "", fmt.Errorf("a WQE with a wrong lkey: %w", err)
	}
	s.noteCQE("CQE", cqe[:])
	if cqe.Opcode() != mlx5.CQEReqErr {
		return "", fmt.Errorf("a WQE with a wrong lkey was completed as %s", cqe.String())
	}
	if err := s.checkRecovery(before.Resets); err != nil {
		return "", err
	}
	return fmt.Sprintf("a wrong lkey gave %q, the queue was replaced and the next frame went",
		cqe.Syndrome()), nil
}

// checkRecovery has the driver find the error, and sends a frame through the new queue.
func (s *session) checkRecovery(resets uint64) error {
	q := s.dev.Tx(0)
	if !s.awaitDone(func() bool {
		q.Reclaim()
		q.Check()
		return s.dev.Stats().Tx[0].Resets > resets
	}) {
		return fmt.Errorf("the driver did not replace the queue in %v", s.cfg.Patience)
	}
	if err := s.sendOne(); err != nil {
		return fmt.Errorf("after the queue was replaced: %w", err)
	}
	if n := s.dev.Stats().Tx[0].Resets - resets; n != 1 {
		return fmt.Errorf("the queue was replaced %d times, once is enough", n)
	}
	return nil
}
