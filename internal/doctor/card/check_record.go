package card

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// doorbellRecord looks at what the records say, at when the receive queue's was first written, and
// tries what the card makes of one that was written before.
func (s *session) doorbellRecord() (string, error) {
	send, recv := s.tap.newestQueues()
	posted, err := recv.readCounter(mlx5.DBRRecv)
	if err != nil {
		return "", err
	}
	told, err := send.readCounter(mlx5.DBRSend)
	if err != nil {
		return "", err
	}
	s.noteFact("receive",
		"%d WQEs posted, %d frames taken; the record said %d when the queue became "+
			"ready", posted, s.got, recv.atReady)
	s.noteFact("send", "%d blocks posted", told)
	switch ahead := posted - uint16(s.got); {
	case recv.atReady != 0:
		return "", fmt.Errorf("the record said %d when the queue became ready: cards differ in "+
			"whether they take that", recv.atReady)
	case s.got == 0:
		return "", skip("no frame came in that could show what the card makes of it")
	case ahead == 0 || int(ahead) > recv.ring.entries:
		return "", fmt.Errorf("the record says %d WQEs and %d frames came in: a ring of %d is not "+
			"between them", posted, s.got, recv.ring.entries)
	}
	early, err := s.earlyRecord()
	if err != nil {
		return "", fmt.Errorf("a queue whose record is written before it is ready: %w", err)
	}
	return "counts WQEs over 16 bits; written after the queue is ready it is taken, before " +
		early, nil
}

// earlyRecord makes a queue of its own, which takes copies of broadcasts, with a record that is
// written before the queue is ready, and says whether the card takes that.
func (s *session) earlyRecord() (string, error) {
	if s.cfg.OpenNode == nil {
		return "was not tried", nil
	}
	q, err := newBareQueue(s.cfg.OpenNode)
	if err != nil {
		return "", errors.Join(err, q.destroyAll())
	}
	said, err := s.tryEarly(q)
	return said, errors.Join(err, q.destroyAll())
}

func (s *session) tryEarly(q *bareQueue) (string, error) {
	took, err := s.broadcastTo(q)
	if err != nil || took {
		return "it is taken, too", err
	}
	q.postBuffers(1)
	if took, err = s.broadcastTo(q); err != nil || took {
		return "it is ignored until it is written again", err
	}
	return "", fmt.Errorf("no frame came, neither with a record written before nor after")
}

// broadcastTo sends a broadcast, of which the device gets a copy, and reports whether the bare
// queue did.
func (s *session) broadcastTo(q *bareQueue) (bool, error) {
	before := q.completions()
	if err := s.checkCopied(); err != nil {
		return false, err
	}
	return s.awaitFor(s.cfg.Patience/4, func() bool { return q.completions() > before }), nil
}
