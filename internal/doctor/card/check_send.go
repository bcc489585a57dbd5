package card

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// firstSend sends one frame, and looks at the descriptor and the completion where they lie.
func (s *session) firstSend() (string, error) {
	f := markedFrame(nearest, s.dev.MAC(), s.nextSeq(), minFrame)
	p, err := s.postQuietly(f)
	if err != nil {
		return "", err
	}
	start := time.Now()
	cqe, err := s.completion()
	took := time.Since(start)
	s.noteWQE(p)
	if err != nil {
		return "", err
	}
	s.noteCQE("CQE", cqe[:])
	if cqe.Opcode() != mlx5.CQEReq {
		return "", fmt.Errorf("the completion is no success: %s", cqe.String())
	}
	if n := s.dev.Tx(0).Reclaim(); n != 1 {
		return "", fmt.Errorf("a completion is there, and the driver made %d packets of it", n)
	}
	s.sendIndex, s.sendCount = uint16(mlx5.CtrlIndex.Get(p.bytes)), cqe.WQECounter()
	if s.wire != nil && !s.awaitDone(func() bool {
		return s.wire.hasReceived(func(got []byte) bool { return bytes.Equal(got, f) })
	}) {
		return "", errors.New("the completion came, and the frame did not come out of the " +
			"port, as behind an e-switch with spoof check on")
	}
	return fmt.Sprintf("completed after %d us", took.Microseconds()), nil
}

func (s *session) nextSeq() uint32 {
	s.sent++
	return s.sent - 1
}

// noteWQE adds a descriptor to the facts, with what Flush changed in it.
func (s *session) noteWQE(p posted) {
	copy(p.bytes, p.readAgain())
	s.noteFact("WQE", "%s", wordsText(p.bytes))
	s.noteFact("WQE, control segment", "%s", mlx5.CtrlLayout.String(p.bytes))
	s.noteFact("WQE, Ethernet segment", "%s", mlx5.EthLayout.String(p.bytes[mlx5.CtrlSegSize:]))
}

// posted describes a descriptor in the send ring.
type posted struct {
	bytes []byte // a copy
	ring  ring
	first int // its first block
}

// byteAddr returns where byte i of the descriptor lies; one at the end of the ring goes on at its
// start.
func (p posted) byteAddr(i int) uint64 {
	return p.ring.addr + uint64((p.first*mlx5.BB+i)%(p.ring.entries*mlx5.BB))
}

// readAgain reads the descriptor once more; what cannot be read is left out.
func (p posted) readAgain() []byte {
	b, err := p.ring.copyRing()
	if err != nil {
		return nil
	}
	return append(b, b...)[p.first*mlx5.BB:][:len(p.bytes)]
}

// postQuietly posts a frame without telling the card, and finds its descriptor.
func (s *session) postQuietly(f []byte) (p posted, err error) {
	send, _ := s.tap.newestQueues()
	before, err := send.ring.copyRing()
	if err != nil {
		return p, err
	}
	if err := s.dev.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
		return p, fmt.Errorf("post a frame: %w", err)
	}
	after, err := send.ring.copyRing()
	if err != nil {
		return p, err
	}
	at := send.ring.changedEntries(before, after)
	if len(at) == 0 {
		return p, errors.New("no descriptor of it is in the send ring")
	}
	p = posted{ring: send.ring, first: at[0]}
	if last := send.ring.entries - 1; p.first == 0 && at[len(at)-1] == last {
		p.first = last // of two blocks, the second one at the start of the ring
	}
	n := int(mlx5.CtrlDS.Get(after[p.first*mlx5.BB:])) * mlx5.DSSize
	twice := append(after, after...)
	p.bytes = twice[p.first*mlx5.BB:][:n]
	return p, nil
}

// completion rings the doorbell and waits for a new completion of the send queue, which it leaves
// to the driver.
func (s *session) completion() (*mlx5.CQE, error) {
	send, _ := s.tap.newestQueues()
	before, err := send.cq.copyRing()
	if err != nil {
		return nil, err
	}
	s.dev.Tx(0).Flush()
	at := -1
	if !s.awaitDone(func() bool {
		after, err := send.cq.copyRing()
		if err == nil {
			at = send.cq.completed(before, after)
		}
		return at >= 0
	}) {
		return nil, fmt.Errorf("no completion came in %v", s.cfg.Patience)
	}
	// A copy in which the owner bit is new may hold other bytes from before it.
	after, err := send.cq.copyRing()
	if err != nil {
		return nil, err
	}
	var cqe mlx5.CQE
	copy(cqe[:], after[(at+1)*send.cq.size-mlx5.CQESize:])
	return &cqe, nil
}
