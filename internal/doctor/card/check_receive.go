package card

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// receiveStart has one frame for our address come in, and looks at its completion.
func (s *session) receiveStart() (string, error) {
	if s.source == nil {
		return "", skip("the port's netdev is not in this network namespace, and nobody else sends")
	}
	cqe, size, err := s.receiveOne()
	if err != nil {
		return "", err
	}
	s.noteCQE("CQE", cqe[:])
	return fmt.Sprintf("the first frame came in, %d bytes, %s", size, s.path()), nil
}

// path says how frames came to the card.
func (s *session) path() string {
	if s.wire != nil {
		return "from the wire"
	}
	return "from the netdev of the same port, by loopback"
}

// lonely is how often receiveOne tries to have a frame come in alone.
const lonely = 20

// receiveOne has one frame come in, alone, and returns its completion as it lies in the ring.
func (s *session) receiveOne() (cqe mlx5.CQE, size int, err error) {
	for range lonely {
		alone, size, err := s.receiveAmong(&cqe)
		if err != nil || alone {
			return cqe, size, err
		}
	}
	return cqe, 0, fmt.Errorf(
		"%d frames came in, each together with others: try it on a quiet port",
		lonely)
}

// receiveAmong has one frame come in. alone is false if others came with it, so that its
// completion cannot be told from theirs.
func (s *session) receiveAmong(cqe *mlx5.CQE) (alone bool, size int, err error) {
	_, recv := s.tap.queues()
	before, err := recv.cq.read()
	if err != nil {
		return false, 0, err
	}
	want, err := s.toCard(s.dev.MAC(), 1, minFrame)
	if err != nil {
		return false, 0, err
	}
	for found := false; !found; {
		seqs := s.fromCard(1, func(p *dv.Packet) { size = p.Size() })
		if len(seqs) == 0 {
			return false, 0, fmt.Errorf("a frame for %s was sent and did not come in %v",
				s.dev.MAC(), s.cfg.Patience)
		}
		found = seqs[len(seqs)-1] == want
	}
	after, err := recv.cq.read()
	if err != nil {
		return false, 0, err
	}
	at := recv.cq.changed(before, after)
	if len(at) != 1 {
		return false, size, nil
	}
	copy(cqe[:], after[(at[0]+1)*recv.cq.size-mlx5.CQESize:])
	s.lastCount = cqe.WQECounter()
	return true, size, nil
}
