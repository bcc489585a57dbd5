package simnic

import (
	"sync"
	"sync/atomic"
)

// RQAttr describes a receive queue.
type RQAttr struct {
	PD         uint32
	CQ         *CQ
	Ring       *Memory // 1<<LogSize WQEs of 1<<LogStride bytes
	LogSize    int
	LogStride  int     // bytes of a WQE, log2: 4 for one scatter entry
	Record     *Memory // 8 bytes; the receive counter is the first word
	UserIndex  uint32  // echoed in completions, 24 bits
	StartIndex uint16  // counter to begin with after reset; 0 on silicon

	Timestamps TimestampFormat // of completions

	LinkedList bool      // WQEs have a next segment and are consumed in its order
	Striding   *Striding // nil: one packet per WQE

	VLANStrip  bool // the outermost C-tag moves from the frame to the completion
	ScatterFCS bool // the FCS follows the frame
	EndPad     bool // writes may run to the end of the cache line
	DelayDrop  bool // a packet waits for a WQE, up to delayDrop

	Netdev bool // frames count as the netdev's, not a user's
	Count  *QueueCount
	Events func(Event)
}

// QueueCount counts for receive queues that share it; nil counts nothing.
type QueueCount struct{ outOfBuffer atomic.Uint64 }

// OutOfBuffer returns the number of packets that found no WQE.
func (c *QueueCount) OutOfBuffer() uint64 { return c.outOfBuffer.Load() }

// Clear sets the counters to zero and returns the previous OutOfBuffer.
func (c *QueueCount) Clear() uint64 { return c.outOfBuffer.Swap(0) }

// Striding makes a WQE hold many packets, each in whole strides.
type Striding struct {
	LogStrideBytes int
	LogStrides     int // strides of one WQE
	TwoByteShift   bool
}

// maxRecvWQE gives the longest receive WQE of any device.
const maxRecvWQE = 512

// RQ represents a receive queue. The driver posts WQEs by advancing the record; the NIC
// consumes them in ring order.
//
//	      Modify        error other than a length error, a lost CQ, Modify
//	RST ----------> RDY --------------------------------------------> ERR
//	 ^               |  packets consume WQEs                           |  WQEs are flushed,
//	 +---------------+-------------------------------------------------+  packets dropped
//	      Modify: counters return to the start
type RQ struct {
	nic    *NIC
	attr   RQAttr
	number uint32
	use    refCount

	commands atomic.Int32 // that wait for mu; a packet does not wait for a WQE meanwhile

	mu      sync.Mutex
	state   State
	hwCI    uint16 // WQEs consumed
	ignored uint16 // value of the record when the queue became ready
	ignores bool   // the record has not changed since: Config.RecordAfterReady
	stride  int    // strides used of the WQE at hwCI
	head    uint16 // linked list: slot of the WQE at hwCI
	dropNow bool   // a packet has waited delayDrop without success: drop until there is a WQE
	wqe     [maxRecvWQE]byte
	block   cqeBlock
	merge   merge
}

// CreateRQ creates a receive queue in the reset state.
func (n *NIC) CreateRQ(a RQAttr) (*RQ, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	if err := n.checkRQ(a); err != nil {
		return nil, err
	}
	if err := a.CQ.use.addUser(); err != nil {
		return nil, statusErrorf(StatusBadRes, "receive queue on completion queue %#x", a.CQ.number)
	}
	rq := &RQ{nic: n, attr: a}
	rq.number = n.numbers.addObject(rq, 20)
	a.CQ.attachQueue(rq)
	return rq, nil
}

func (n *NIC) checkRQ(a RQAttr) error {
	if a.LogStride < 4 || 1<<a.LogStride > min(n.caps.MaxRecvWQE, maxRecvWQE) {
		return statusErrorf(StatusBadParam, "receive WQEs of 2^%d bytes (at most %d)",
			a.LogStride, n.caps.MaxRecvWQE)
	}
	if err := checkRing("receive queue", a.Ring, a.Record, a.LogSize, n.caps.LogMaxQueue,
		1<<a.LogStride); err != nil {
		return err
	}
	if a.CQ == nil {
		return statusErrorf(StatusBadParam, "receive queue without completion queue")
	}
	if err := n.checkStamps(a.Timestamps); err != nil {
		return err
	}
	if s := a.Striding; s != nil {
		c := n.caps
		if !c.StridingRQ || a.LogStride < 5 || s.LogStrideBytes < c.LogMinStride ||
			s.LogStrideBytes > c.LogMaxStride ||
			s.LogStrides < c.LogMinStrides || s.LogStrides > c.LogMaxStrides {
			return statusErrorf(StatusBadParam,
				"striding receive queue of 2^%d strides of 2^%d bytes",
				s.LogStrides, s.LogStrideBytes)
		}
	}
	if a.VLANStrip && !n.caps.VLANStrip || a.ScatterFCS && !n.caps.ScatterFCS || a.EndPad &&
		!n.caps.EndPad || a.DelayDrop && !n.caps.DelayDrop {
		return statusErrorf(StatusBadParam, "receive queue feature the device lacks")
	}
	return nil
}

// Number returns the RQN.
func (rq *RQ) Number() uint32 { return rq.number }

// Attr returns what the queue was created with, VLAN stripping as last modified.
func (rq *RQ) Attr() RQAttr {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	return rq.attr
}

// Netdev reports whether frames count as the netdev's. Hooks may ask.
func (rq *RQ) Netdev() bool { return rq.attr.Netdev }

// State returns the device's state of the queue.
func (rq *RQ) State() State {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	return rq.state
}

// lockForCommand locks the queue for a command of the driver. A packet that waits for a WQE is
// dropped: it would hold the lock for up to delayDrop.
func (rq *RQ) lockForCommand() {
	rq.commands.Add(1)
	rq.mu.Lock()
	rq.commands.Add(-1)
}

// Modify moves the queue from state cur, which must be its real state, to next. No completion of it
// is written once it is in the reset state: drivers clean their completion queues then and rely on
// that (linux drivers/infiniband/hw/mlx5/qp.c __mlx5_ib_modify_qp).
func (rq *RQ) Modify(cur, next State) error {
	rq.lockForCommand()
	defer rq.mu.Unlock()
	if err := checkTransition("receive queue", rq.number, rq.state, cur, next); err != nil {
		return err
	}
	rq.closeMerge()
	rq.flushBlock()
	if next == StateReset {
		rq.attr.CQ.ReleaseHeld()
	}
	if next == StateReset || rq.state == StateReset {
		rq.hwCI, rq.stride, rq.head = rq.attr.StartIndex, 0, 0
	}
	if next == StateReady && rq.state == StateReset {
		rq.ignored, rq.ignores = rq.postedRecord(), rq.nic.cfg.RecordAfterReady
	}
	rq.state = next
	if next == StateError {
		rq.flushPosted()
	}
	return nil
}

// SetVLANStrip turns stripping on or off for frames to come.
func (rq *RQ) SetVLANStrip(on bool) error {
	if on && !rq.nic.caps.VLANStrip {
		return statusErrorf(StatusBadParam, "VLAN stripping the device lacks")
	}
	rq.lockForCommand()
	defer rq.mu.Unlock()
	rq.attr.VLANStrip = on
	return nil
}

// SetCount replaces the counter of the queue.
func (rq *RQ) SetCount(c *QueueCount) {
	rq.lockForCommand()
	defer rq.mu.Unlock()
	rq.attr.Count = c
}

// Destroy removes the queue and waits for a delivery in progress. Tables and
// TIRs that name it must be destroyed before: StatusResBusy.
func (rq *RQ) Destroy() error {
	if err := rq.use.retireObject(); err != nil {
		return statusErrorf(StatusOf(err), "destroy receive queue %#x", rq.number)
	}
	rq.lockForCommand()
	rq.state, rq.merge.segments, rq.block.entries = StateReset, 0, nil
	rq.mu.Unlock()
	rq.attr.CQ.detachQueue(rq)
	rq.attr.CQ.use.dropUser()
	rq.nic.numbers.removeNumber(rq.number)
	return nil
}
