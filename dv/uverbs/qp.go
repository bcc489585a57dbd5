package uverbs

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// QPAttr describes a raw packet queue pair for sending.
type QPAttr struct {
	// CQ receives the completions.
	CQ *CQ

	// Entries gives the size of the send ring in basic blocks of 64 bytes: a power of two, at most
	// DeviceCaps.MaxSendBlocks.
	Entries int

	// SQBuf gives the ring: Entries*64 bytes, page aligned, zero.
	SQBuf *mmio.Region

	// DBR gives the doorbell record: 8 bytes, 8-aligned, zero. Word 1 is the send counter.
	DBR *mmio.Region

	// UserIndex comes back in completions (24 bits, below 0xffffff). Each queue of a context needs
	// a different one.
	UserIndex uint32

	// UserHandle comes back in events of the queue.
	UserHandle uint64

	// MaxSendWR is informational; default Entries.
	MaxSendWR int
}

// QP is a queue pair: a raw packet one, which sends, or an RSS one (CreateRSSQP), which is only the
// target of flows.
type QP struct {
	object
	SQN       uint32 // send queue number, for control segments
	Reg       *Page  // doorbell register, at byte RegOffset: nil for an RSS queue pair
	RegOffset int
	// bytes of each of the register's two halves, which accept work requests alternately; 0: no
	// copies
	BlueFlameSize int

	pd    *PD
	state QPState // guarded by c.mu
}

const basicBlock = 64

// CreateRawQP creates a raw packet queue pair in state RESET. EPERM means CAP_NET_RAW is missing.
// The caller owns the memory of a, which must stay mapped until Close returned nil.
func (pd *PD) CreateRawQP(a QPAttr) (*QP, error) {
	noun := fmt.Sprintf("raw packet queue pair of %d blocks", a.Entries)
	if err := a.checkAttr(noun); err != nil {
		return nil, err
	}
	qp := &QP{pd: pd, state: QPReset}
	var r ExCreateQPResp
	var drv Mlx5CreateQPResp
	err := pd.c.runCreate(&qp.object, &r.Base.QPHandle, write{op: opCreateQP, noun: noun,
		in: a.coreReq(pd), out: &r, uhwIn: a.driverReq(), uhwOut: &drv,
		uses: []*object{&pd.object, &a.CQ.object}, needs: pageBytes(a.Entries * basicBlock)})
	if err != nil {
		return nil, err
	}
	qp.SQN = r.Base.QPN
	if err := qp.bindDoorbell(drv.BfregIndex); err != nil {
		qp.Close()
		return nil, err
	}
	return qp, nil
}

func (a QPAttr) checkAttr(noun string) error {
	if a.CQ == nil {
		return refuseArgs(opCreateQP, noun, "it needs a completion queue")
	}
	if a.UserIndex >= Mlx5QPNoUserIndex {
		return refuseArgs(opCreateQP, noun, "user index %#x must be below %#x",
			a.UserIndex, Mlx5QPNoUserIndex)
	}
	return checkRing(opCreateQP, noun, a.Entries, basicBlock, a.SQBuf, a.DBR)
}

func (a QPAttr) coreReq(pd *PD) ExCreateQPReq {
	wr := a.MaxSendWR
	if wr == 0 {
		wr = a.Entries
	}
	return ExCreateQPReq{UserHandle: a.UserHandle, PDHandle: pd.handle, SendCQHandle: a.CQ.handle,
		RecvCQHandle: a.CQ.handle,
		MaxSendWR:    uint32(wr), MaxSendSGE: 1, QPType: QPTypeRawPacket}
}

func (a QPAttr) driverReq() Mlx5CreateQPReq {
	return Mlx5CreateQPReq{DBAddr: a.DBR.Addr(), SQWQECount: uint32(a.Entries), UIDX: a.UserIndex,
		SQBufAddr: a.SQBuf.Addr()}
}

// bindDoorbell finds the doorbell register that the kernel chose.
func (qp *QP) bindDoorbell(index uint32) error {
	caps := &qp.c.caps
	page, offset := bfregAddress(index, caps.UARsPerPage, caps.BFRegSize)
	if page >= len(qp.c.uars) {
		return refuseArgs(opCreateQP, qp.noun,
			"the kernel gave doorbell register %d, which is on page %d of %d",
			index, page, len(qp.c.uars))
	}
	qp.Reg, qp.RegOffset = qp.c.uars[page], offset
	// register 0 is for all queues without their own register
	if qp.Reg.WriteCombining && index != 0 {
		qp.BlueFlameSize = int(caps.BFRegSize) / 2
	}
	return nil
}

// Close destroys the queue pair in whatever state it is; EBUSY while a flow points at it.
func (qp *QP) Close() error {
	return qp.destroyOnce(write{op: opDestroyQP,
		in: DestroyQPReq{QPHandle: qp.handle}, out: &DestroyQPResp{}})
}
