package card

import (
	"fmt"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// receiveStart receives one frame for our address, and looks at its completion.
func (s *session) receiveStart() (string, error) {
	if s.source == nil {
		return "", skip("the port's netdev is not in this network namespace, and nobody else sends")
	}
	cqe, size, err := s.receiveOne()
	if err != nil {
		return s.receiveAnswer(err)
	}
	s.noteCQE("CQE", cqe[:])
	return fmt.Sprintf("the first frame came in, %d bytes, %s", size, s.framePath()), nil
}

// receiveAnswer has a neighbour answer ARP, where frames by loopback do not come: a card that
// receives from its cable only leaves the checks that need many frames without.
func (s *session) receiveAnswer(err error) (string, error) {
	for _, who := range s.cfg.Neighbours {
		answered, askErr := s.askRing(probe.ARPFrame(s.dev.MAC(), netip.IPv4Unspecified(), who),
			func(f []byte) bool { return probe.ParseFrame(f).ARPSender == who })
		if askErr != nil {
			return "", askErr
		}
		if answered {
			s.source = nil
			s.noteFact("by loopback", "%v", err)
			return fmt.Sprintf("the ARP answer of %s came in; nothing came by loopback", who), nil
		}
	}
	return "", err
}

// framePath says how frames came to the card.
func (s *session) framePath() string {
	if s.wire != nil {
		return "from the wire"
	}
	return "from the netdev of the same port, by loopback"
}

// lonely says how often receiveOne tries to have a frame come in alone.
const lonely = 20

// receiveOne receives one frame, alone, and returns its completion as it lies in the ring.
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

// receiveAmong receives one frame. alone is false if others came with it, so that its
// completion cannot be told from theirs.
func (s *session) receiveAmong(cqe *mlx5.CQE) (alone bool, size int, err error) {
	_, recv := s.tap.newestQueues()
	before, err := recv.cq.copyRing()
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
	after, err := recv.cq.copyRing()
	if err != nil {
		return false, 0, err
	}
	at := recv.cq.changedEntries(before, after)
	if len(at) != 1 {
		return false, size, nil
	}
	copy(cqe[:], after[(at[0]+1)*recv.cq.size-mlx5.CQESize:])
	s.lastCount = cqe.WQECounter()
	return true, size, nil
}
