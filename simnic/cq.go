package simnic

import (
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// MiniFormat says what a compressed completion keeps per packet
// (mini_cqe_res_format of the CQ context).
type MiniFormat uint8

// Mini CQE formats, in the numbers of the device.
const (
	MiniHash           MiniFormat = 0 // RSS hash, length
	MiniChecksum       MiniFormat = 1 // checksum, length
	MiniFlowTagStride  MiniFormat = 2 // flow tag, stride index, length
	MiniChecksumStride MiniFormat = 3 // checksum, stride index, length
	MiniL34Stride      MiniFormat = 4 // L3/L4 types, stride index, length
)

// CQAttr describes a completion queue.
type CQAttr struct {
	Ring       *Memory // 1<<LogSize entries
	LogSize    int
	EntrySize  int     // 64 (default) or 128 bytes
	Record     *Memory // 8 bytes: consumer index, arm word
	UAR        uint32  // page whose arm register serves this queue
	StartIndex uint32  // producer index to begin with; 0 on silicon

	IgnoreOverrun bool // overwrite entries the driver has not read
	Collapsed     bool // always write entry 0
	Compress      bool // receive completions come in blocks of mini CQEs
	MiniFormat    MiniFormat

	// Moderation: at most one event per MaxCount completions or PeriodUsec
	// microseconds, whichever comes first. Either 0: no moderation.
	MaxCount   uint16
	PeriodUsec uint16

	// Completion is called when an armed queue gets a completion, once per arming. It runs with the
	// queue's lock held and must not call the NIC.
	Completion func(*CQ)
	Events     func(Event) // EventCQError; same rule
}

// CQStatus is the health of a completion queue.
type CQStatus uint8

// Completion queue statuses, in the numbers of the CQ context.
const (
	CQOK         CQStatus = 0
	CQOverflow   CQStatus = 9
	CQWriteError CQStatus = 10
)

// CQ is a completion queue. The NIC writes entries, the driver publishes in the
// record how far it has read.
type CQ struct {
	nic    *NIC
	attr   CQAttr
	number uint32
	use    refCount
	status atomic.Uint32
	common [mlx5.CQESize / 8]uint64 // of MiniFormat

	mu       sync.Mutex
	pi       uint32 // next entry to write, free-running; 24 bits are visible
	ci       uint32 // consumer index last read from the record
	arm      arming
	held     [][64]byte // completions that a fault holds back
	holding  bool
	attached []failer // queues that stop when this one fails
}

// failer is a queue that completes into a CQ.
type failer interface{ cqFailed() }

// CreateCQ creates a completion queue. The caller has written every entry's last byte so that none
// looks valid.
func (n *NIC) CreateCQ(a CQAttr) (*CQ, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	if a.EntrySize == 0 {
		a.EntrySize = 64
	}
	if a.EntrySize != 64 && a.EntrySize != 128 {
		return nil, statusErrorf(StatusBadParam, "completion queue entries of %d bytes",
			a.EntrySize)
	}
	if err := checkRing("completion queue", a.Ring, a.Record, a.LogSize, n.caps.LogMaxCQ,
		a.EntrySize); err != nil {
		return nil, err
	}
	if a.Compress && (!n.caps.Compression || n.caps.MiniFormats&(1<<a.MiniFormat) == 0) {
		return nil, statusErrorf(StatusBadParam, "completion queue with mini format %d",
			a.MiniFormat)
	}
	cq := &CQ{nic: n, attr: a, common: a.MiniFormat.commonMask(), pi: a.StartIndex,
		ci: a.StartIndex}
	cq.number = n.numbers.addObject(cq, 20)
	return cq, nil
}

// Number returns the CQN.
func (cq *CQ) Number() uint32 { return cq.number }

// Attr returns what the queue was created with, moderation as last modified.
func (cq *CQ) Attr() CQAttr {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.attr
}

// Status reports whether the queue still takes completions.
func (cq *CQ) Status() CQStatus { return CQStatus(cq.status.Load()) }

// Indices returns the next entry to write and the next one to read as far as the NIC knows,
// free-running in 24 bits.
func (cq *CQ) Indices() (producer, consumer uint32) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.readIndex()
	return cq.pi & indexMask, cq.ci & indexMask
}

// Moderate changes the moderation of events.
func (cq *CQ) Moderate(maxCount, periodUsec uint16) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.attr.MaxCount, cq.attr.PeriodUsec = maxCount, periodUsec
	return nil
}

// Resize moves the queue to another ring. The driver's entries are not copied:
// the device writes a RESIZE_CQ completion into the old ring and continues at the
// same index in the new one, as linux mlx5_ib expects.
func (cq *CQ) Resize(ring *Memory, logSize int) error {
	if err := checkRing("completion queue", ring, cq.attr.Record, logSize, cq.nic.caps.LogMaxCQ,
		cq.attr.EntrySize); err != nil {
		return err
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	var e [64]byte
	e[63] = 5 << 4
	cq.writeEntry(&e)
	cq.attr.Ring, cq.attr.LogSize = ring, logSize
	return nil
}

// Destroy removes the queue. Queues that complete into it must be destroyed before: StatusResBusy.
func (cq *CQ) Destroy() error {
	if err := cq.use.retireObject(); err != nil {
		return statusErrorf(StatusOf(err), "destroy completion queue %#x", cq.number)
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.arm.stopTimer()
	cq.held = nil // the memory may be unmapped when they would be released
	cq.nic.numbers.removeNumber(cq.number)
	return nil
}
