package simnic

import "sync"

// SQAttr describes a send queue.
type SQAttr struct {
	PD, TD     uint32 // protection and transport domain
	CQ         *CQ
	Ring       *Memory // 1<<LogSize basic blocks of 64 bytes
	LogSize    int
	Record     *Memory // 8 bytes; the send counter is the second word
	UAR        uint32  // page whose doorbell registers serve this queue
	UserIndex  uint32  // echoed in completions, 24 bits
	StartIndex uint16  // counter to begin with after reset; 0 on silicon
	MultiPkt   bool    // takes enhanced multi-packet WQEs
	Netdev     bool    // frames count as the netdev's, not a user's
	Events     func(Event)
}

// SQ is a send queue. The driver writes WQEs and rings the doorbell; the NIC
// executes them on the goroutine that rang.
type SQ struct {
	nic    *NIC
	attr   SQAttr
	number uint32
	use    usage

	mu      sync.Mutex
	state   State
	hwCI    uint16 // next basic block to execute
	failed  bool   // an error was reported since reset
	stopped bool   // nothing is executed or flushed until reset
	flamed  bool   // there was a BlueFlame copy since reset, the last one into half
	half    int
	burst   *burst
}

// origin is what the frames of the queue are known by.
func (sq *SQ) origin() origin {
	if sq.attr.Netdev {
		return origin{ownerNetdev, true, sq.attr.TD}
	}
	return origin{ownerSlice, true, sq.attr.TD}
}

// CreateSQ makes a send queue in the reset state.
func (n *NIC) CreateSQ(a SQAttr) (*SQ, error) {
	if err := n.usable(); err != nil {
		return nil, err
	}
	if err := checkRing("send queue", a.Ring, a.Record, a.LogSize, n.caps.LogMaxQueue, 64); err != nil {
		return nil, err
	}
	if a.CQ == nil {
		return nil, refuse(StatusBadParam, "send queue without completion queue")
	}
	if err := a.CQ.use.take(); err != nil {
		return nil, refuse(StatusBadRes, "send queue on completion queue %#x", a.CQ.number)
	}
	sq := &SQ{nic: n, attr: a}
	sq.number = n.numbers.add(sq, 20)
	a.CQ.attach(sq)
	return sq, nil
}

// Number is the SQN, which for a queue of a raw packet QP is also the verbs QPN.
func (sq *SQ) Number() uint32 { return sq.number }

// Attr is what the queue was created with.
func (sq *SQ) Attr() SQAttr { return sq.attr }

// State is the state the device has the queue in.
func (sq *SQ) State() State {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	return sq.state
}

// Modify moves the queue from state cur, which must be its real state, to next.
// In the reset state its counters return to the start; the driver zeroes the
// doorbell record.
func (sq *SQ) Modify(cur, next State) error {
	sq.mu.Lock()
	defer sq.mu.Unlock()
	if err := checkTransition("send queue", sq.number, sq.state, cur, next); err != nil {
		return err
	}
	if next == StateReset || sq.state == StateReset {
		sq.hwCI, sq.failed, sq.stopped, sq.flamed = sq.attr.StartIndex, false, false, false
	}
	sq.state = next
	if next == StateError {
		sq.run()
	}
	return nil
}

// Destroy removes the queue; WQEs not executed yet never are.
func (sq *SQ) Destroy() error {
	if err := sq.use.retire(); err != nil {
		return refuse(StatusOf(err), "destroy send queue %#x", sq.number)
	}
	sq.mu.Lock()
	sq.state = StateReset
	sq.mu.Unlock()
	sq.attr.CQ.detach(sq)
	sq.attr.CQ.use.release()
	sq.nic.numbers.remove(sq.number)
	return nil
}
